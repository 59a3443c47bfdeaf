/* Tokens as they were sampled, one element each. Long sequences hold elements only near what is seen. */
import { html, useEffect, useMemo, useRef, useState } from "../vendor/htm-preact.module.js";
import { harmless, isActing } from "../lib/format.js";
import { classesOf } from "../lib/shades.js";

export const WINDOWED = 5000; // tokens from which on only those near the view are elements
const CHUNK = 400;

function shown(tokens, index) {
  const text = tokens.text ? tokens.text[index] : `⟨${tokens.id[index]}⟩`;
  const seen = isActing(text) ? harmless(text) : text;
  return seen.includes("\n") ? seen.replaceAll("\n", "↵\n") : seen || "∅";
}

function Chunk({ tokens, indices, oldest, near, number }) {
  if (!near) {
    return html`<span data-chunk=${number}>${indices.map((index) => shown(tokens, index)).join("")}</span>`;
  }
  return html`<span data-chunk=${number}>${indices.map((index) => html`<span class=${classesOf(tokens, index, oldest)} data-i=${index}>${shown(tokens, index)}</span>`)}</span>`;
}

/* Which chunks are within a screen of the view. null: all. */
function useNear(root, chunks) {
  const windowed = chunks.length * CHUNK > WINDOWED;
  const [near, setNear] = useState(() => new Set([0, 1, 2]));
  useEffect(() => {
    if (!windowed) return;
    const watch = new IntersectionObserver(
      (entries) => setNear((before) => {
        const after = new Set(before);
        for (const { target, isIntersecting } of entries) after[isIntersecting ? "add" : "delete"](Number(target.dataset.chunk));
        return after;
      }),
      { rootMargin: "100% 0px" },
    );
    for (const element of root.current.children) watch.observe(element);
    return () => watch.disconnect();
  }, [chunks]);
  return windowed ? near : null;
}

/* indices: of the columns in `tokens`. at: the token that is inspected. onInspect(index). */
export function Tokens({ tokens, indices, oldest, label, onInspect }) {
  const root = useRef(null);
  const marked = useRef(null);
  const chunks = useMemo(() => Array.from({ length: Math.ceil(indices.length / CHUNK) }, (_, i) => indices.slice(i * CHUNK, (i + 1) * CHUNK)), [indices]);
  const near = useNear(root, chunks);
  const body = useMemo(
    () => chunks.map((part, i) => html`<${Chunk} key=${i} number=${i} tokens=${tokens} indices=${part} oldest=${oldest} near=${!near || near.has(i)} />`),
    [chunks, near, tokens],
  );
  const mark = (element) => {
    marked.current?.classList.remove("at");
    marked.current = element;
    element?.classList.add("at");
    if (element) onInspect(Number(element.dataset.i));
  };
  const all = () => [...root.current.querySelectorAll("[data-i]")];
  const move = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -1e9, End: 1e9 }[event.key];
    if (!by || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const elements = all();
    const from = elements.indexOf(marked.current);
    const element = elements[from < 0 ? 0 : Math.min(elements.length - 1, Math.max(0, from + by))];
    mark(element);
    element?.scrollIntoView({ block: "nearest" });
  };
  const hover = (event) => {
    const element = event.target.closest("[data-i]");
    if (element) mark(element);
  };
  return html`<div ref=${root} class="text tokens" dir="auto" tabindex="0" role="group" aria-label=${`${label}: ${indices.length} tokens; arrow keys read them`}
    onKeyDown=${move} onMouseOver=${hover} onClick=${hover} onFocus=${() => marked.current || mark(all()[0])}>${body}</div>`;
}
