// Keeps the overview's figures fresh. What stays the same is left alone, and with it focus, selection and scroll.
"use strict";
{
    const EVERY = 5000; // milliseconds
    const STOPPED = "cairnq.overview.stopped";
    let following = true;
    let timer;
    let asking = false;

    const box = () => document.getElementById("cairnq-refresh");
    const figures = (page) => page.getElementById("cairnq-figures");

    const remember = () => {
        try {
            if (following) {
                window.localStorage.removeItem(STOPPED);
            } else {
                window.localStorage.setItem(STOPPED, "1");
            }
        } catch {
            // Not allowed: it is forgotten with the page.
        }
    };

    const wasStopped = () => {
        try {
            return window.localStorage.getItem(STOPPED) !== null;
        } catch {
            return false;
        }
    };

    const describe = (lost) => {
        const { dataset } = box();
        box().querySelector("button").textContent = following ? dataset.stop : dataset.follow;
        const status = box().querySelector("[role=status]");
        const failed = following ? dataset.unanswered : dataset.failed;
        const text = lost ? failed : following ? dataset.following : dataset.stopped;
        if (status.textContent !== text) {
            status.textContent = text;
        }
    };

    const isReading = () => {
        const selection = window.getSelection();
        return selection !== null && !selection.isCollapsed && figures(document).contains(selection.anchorNode);
    };

    const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE && (node.id || node.dataset.key)) || null;

    const isAlike = (old, fresh) =>
        old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName && keyOf(old) === keyOf(fresh);

    // Makes the one like the other. Whether details are open is the reader's affair.
    const become = (old, fresh) => {
        if (old.nodeType !== Node.ELEMENT_NODE) {
            if (old.nodeValue !== fresh.nodeValue) {
                old.nodeValue = fresh.nodeValue;
            }
            return;
        }
        for (const { name } of [...old.attributes]) {
            if (!fresh.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) {
                old.removeAttribute(name);
            }
        }
        for (const { name, value } of fresh.attributes) {
            if (old.getAttribute(name) !== value) {
                old.setAttribute(name, value);
            }
        }
        let next = old.firstChild;
        for (const child of [...fresh.childNodes]) {
            const key = keyOf(child);
            let found = next;
            while (key && found && !isAlike(found, child)) {
                found = found.nextSibling;
            }
            if (found && isAlike(found, child)) {
                // Those between are gone, or come later and are made anew.
                while (next !== found) {
                    const gone = next;
                    next = next.nextSibling;
                    gone.remove();
                }
                become(found, child);
                next = found.nextSibling;
            } else if (!key && next && !keyOf(next) && next.nodeType === child.nodeType) {
                const replaced = next;
                next = next.nextSibling;
                replaced.replaceWith(document.adoptNode(child));
            } else {
                old.insertBefore(document.adoptNode(child), next);
            }
        }
        while (next) {
            const gone = next;
            next = next.nextSibling;
            gone.remove();
        }
    };

    const look = async () => {
        window.clearTimeout(timer);
        if (!following || document.hidden || asking) {
            return;
        }
        asking = true;
        try {
            const answer = await fetch(window.location.href, { headers: { Accept: "text/html" } });
            if (answer.status >= 500) {
                throw new Error(answer.statusText);
            }
            const fresh = figures(new DOMParser().parseFromString(await answer.text(), "text/html"));
            if (following) {
                following = fresh !== null;
                describe(!following);
                if (following && !isReading()) {
                    become(figures(document), fresh);
                }
            }
        } catch {
            if (following) {
                describe(true);
            }
        }
        asking = false;
        plan();
    };

    const plan = () => {
        window.clearTimeout(timer);
        if (following && !document.hidden) {
            timer = window.setTimeout(look, EVERY);
        }
    };

    const start = () => {
        if (!box()) {
            return;
        }
        following = !wasStopped();
        box().hidden = false;
        box().querySelector("button").addEventListener("click", () => {
            following = !following;
            remember();
            describe(false);
            look();
        });
        document.addEventListener("visibilitychange", () => {
            if (!document.hidden) {
                look();
            }
        });
        // A page that comes back from the browser's memory shows old figures.
        window.addEventListener("pageshow", (event) => {
            if (event.persisted) {
                look();
            }
        });
        describe(false);
        plan();
    };

    document.addEventListener("DOMContentLoaded", start);
}
