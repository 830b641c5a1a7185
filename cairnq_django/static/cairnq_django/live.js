// Follows a task that has not ended: moves its progress bar, and shows its page anew once there is more to see.
"use strict";
{
    const EVERY = 2000; // milliseconds
    let following = true;
    let timer;

    const box = () => document.getElementById("cairnq-live");

    const tell = (text) => {
        const status = box().querySelector("[role=status]");
        if (status.textContent !== text) {
            status.textContent = text;
        }
    };

    const describe = () => {
        const { dataset } = box();
        box().querySelector("button").textContent = following ? dataset.stop : dataset.follow;
        tell(following ? dataset.following : dataset.stopped);
    };

    const isReading = () => {
        const selection = window.getSelection();
        return selection !== null && !selection.isCollapsed;
    };

    const move = (state) => {
        document.querySelectorAll("#task_form .cairnq-progress:not(.cairnq-children *)").forEach((each) => {
            each.querySelector("progress").value = state.progress;
            each.querySelector(".cairnq-percent").textContent = state.percent;
        });
        for (const [shown, text] of [[".cairnq-progress-message", state.message], [".cairnq-took", state.took]]) {
            document.querySelectorAll(shown).forEach((each) => {
                each.textContent = text;
            });
        }
    };

    const showAnew = async () => {
        const answer = await fetch(window.location.href, { headers: { Accept: "text/html" } });
        if (!answer.ok) {
            throw new Error(answer.statusText);
        }
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const fresh = page.getElementById("content-main");
        const old = document.getElementById("content-main");
        if (!fresh || !old) {
            window.location.reload();
            return;
        }
        // Who is about to press a button by keyboard finds it again, if it is still there.
        const focused = old.contains(document.activeElement) ? document.activeElement : null;
        const value = focused && focused.matches("button[name]") ? focused.value : null;
        const wasLive = focused && focused.closest("#cairnq-live");
        old.replaceWith(document.adoptNode(fresh));
        document.dispatchEvent(new CustomEvent("cairnq:shown"));
        start();
        const again = wasLive
            ? document.querySelector("#cairnq-live button")
            : value && document.querySelector(`.cairnq-buttons button[value="${CSS.escape(value)}"]`);
        const next = again || (focused && document.querySelector("#cairnq-live button"));
        if (next) {
            next.focus({ preventScroll: true });
        }
    };

    const look = async () => {
        if (!following || document.hidden || !box()) {
            return;
        }
        try {
            const answer = await fetch(box().dataset.url, { headers: { Accept: "application/json" } });
            if (answer.redirected || [403, 404].includes(answer.status)) {
                window.location.reload(); // to the login, or to what is said of it
                return;
            }
            if (!answer.ok) {
                throw new Error(answer.statusText);
            }
            const state = await answer.json();
            if (!following || !box()) {
                return;
            }
            tell(box().dataset.following);
            if (state.version === box().dataset.version) {
                move(state);
            } else if (!isReading()) {
                await showAnew();
                return;
            }
        } catch {
            if (box()) {
                tell(box().dataset.unanswered);
            }
        }
        plan();
    };

    const plan = () => {
        window.clearTimeout(timer);
        timer = window.setTimeout(look, EVERY);
    };

    const start = () => {
        if (!box()) {
            return;
        }
        box().hidden = false;
        box().querySelector("button").addEventListener("click", () => {
            following = !following;
            describe();
            plan();
        });
        describe();
        plan();
    };

    document.addEventListener("DOMContentLoaded", start);
    document.addEventListener("visibilitychange", () => {
        if (!document.hidden) {
            look();
        }
    });
}
