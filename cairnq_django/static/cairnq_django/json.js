// Colours JSON that the server laid out, and lets its lists and objects be folded. Without it, it reads as well.
"use strict";
{
    const DEEPEST = 30; // levels that fold
    const TOKEN = /("(?:[^"\\]|\\.)*"?)(\s*:)?|\b(?:true|false|null)\b|-?\d[\d.eE+-]*/g;

    const span = (kind, text) => {
        const made = document.createElement("span");
        made.className = kind;
        made.textContent = text;
        return made;
    };

    const coloured = (line) => {
        const parts = document.createDocumentFragment();
        let done = 0;
        for (const found of line.matchAll(TOKEN)) {
            parts.append(line.slice(done, found.index));
            const [token, string, colon] = found;
            if (string && colon) {
                parts.append(span("cairnq-json-name", string), colon);
            } else if (string) {
                parts.append(span("cairnq-json-string", string));
            } else {
                parts.append(span(/^[tfn]/.test(token) ? "cairnq-json-word" : "cairnq-json-number", token));
            }
            done = found.index + token.length;
        }
        parts.append(line.slice(done));
        return parts;
    };

    const toggle = (block, more, label) => {
        const button = document.createElement("button");
        button.type = "button";
        button.className = "cairnq-fold";
        button.setAttribute("aria-expanded", "true");
        button.setAttribute("aria-label", label);
        button.addEventListener("click", () => {
            block.hidden = !block.hidden;
            more.hidden = !block.hidden;
            button.setAttribute("aria-expanded", String(!block.hidden));
        });
        return button;
    };

    const enhance = (pre) => {
        const laidOut = document.createDocumentFragment();
        const open = [laidOut];
        const lines = pre.textContent.split("\n");
        lines.forEach((line, number) => {
            const indent = line.search(/[^ ]|$/) / 2;
            const begins = /[[{]$/.test(line) && number + 1 < lines.length && indent < DEEPEST;
            const ends = /^ *[\]}]/.test(line) && open.length > indent + 1;
            if (ends) {
                open.length = indent + 1;
            }
            const into = open[open.length - 1];
            const end = number + 1 < lines.length ? "\n" : "";
            if (!begins) {
                into.append(coloured(line), end);
                return;
            }
            const block = span("cairnq-json-block", "");
            const more = span("cairnq-json-more", "\u2026");
            more.hidden = true;
            into.append(toggle(block, more, `${pre.dataset.fold} ${line.trim()}`), coloured(line), more, block);
            block.append(end);
            open.push(block);
        });
        pre.replaceChildren(laidOut);
        pre.classList.add("cairnq-json-folds");
    };

    const enhanceAll = () => document.querySelectorAll("pre.cairnq-json:not(.cairnq-json-folds)").forEach(enhance);
    document.addEventListener("DOMContentLoaded", enhanceAll);
    document.addEventListener("cairnq:shown", enhanceAll);
}
