// Goes on with work that takes many requests, chunk by chunk, until it is finished or somebody stops it.
"use strict";
{
    const AGAIN = 3000; // milliseconds until an unanswered request is repeated
    const STOPPED = "#stopped"; // in the address, so that it stays stopped when the page is loaded anew
    let busy = false;

    const box = () => document.getElementById("cairnq-job");
    const form = () => document.getElementById("cairnq-job-form");
    const isStopped = () => window.location.hash === STOPPED;

    const tell = (text) => {
        const status = box().querySelector("[role=status]");
        if (status.textContent !== text) {
            status.textContent = text;
        }
    };

    const show = (fresh) => {
        const old = box();
        const focused = old.contains(document.activeElement);
        const told = old.querySelector("[role=status]");
        const words = fresh.querySelector("[role=status]").textContent;
        const going = fresh.querySelector("#cairnq-job-form") !== null;
        // The same element stays, for screen readers to hear of a change.
        fresh.querySelector("[role=status]").replaceWith(told);
        old.replaceWith(document.adoptNode(fresh));
        if (!going) {
            tell(words);
        }
        describe();
        if (focused) {
            (box().querySelector("button") || box().querySelector("a")).focus({ preventScroll: true });
        }
    };

    const describe = () => {
        if (!form()) {
            return;
        }
        const button = form().querySelector("button");
        button.dataset.continue = button.dataset.continue || button.textContent;
        button.textContent = isStopped() ? button.dataset.continue : box().dataset.stop;
        tell(isStopped() ? box().dataset.stopped : box().dataset.going);
    };

    const step = async () => {
        if (busy || isStopped() || !form()) {
            return;
        }
        busy = true;
        let pause = 0;
        try {
            const answer = await fetch(window.location.pathname, { method: "POST", body: new FormData(form()) });
            if (answer.status >= 500) {
                throw new Error(answer.statusText);
            }
            const page = new DOMParser().parseFromString(await answer.text(), "text/html");
            const fresh = page.getElementById("cairnq-job");
            if (!fresh) {
                window.location.reload(); // to the login, or to what is said of it
                return;
            }
            show(fresh);
        } catch {
            tell(box().dataset.unanswered);
            pause = AGAIN;
        }
        busy = false;
        window.setTimeout(step, pause);
    };

    const turn = (event) => {
        if (!event.target.closest("#cairnq-job-form")) {
            return;
        }
        event.preventDefault();
        const { pathname, search } = window.location;
        window.history.replaceState(null, "", pathname + search + (isStopped() ? "" : STOPPED));
        describe();
        step();
    };

    document.addEventListener("DOMContentLoaded", () => {
        if (form()) {
            document.addEventListener("submit", turn);
            describe();
            step();
        }
    });
}
