/* Where a view was scrolled to is kept with its entry in the history: Back and a reload return there. */
import { useEffect, useRef } from "../vendor/htm-preact.module.js";

const PATIENCE_MS = 3000; // for the answers that make a view as high as it was
const BY_HAND = ["wheel", "touchmove", "keydown"];

function keep() {
  history.replaceState({ y: scrollY }, "");
}

/* Call once, in the frame. place: names what is shown; main: the ref of the element that gets the focus in another place. */
export function usePlace(place, main) {
  const first = useRef(true);
  useEffect(() => {
    history.scrollRestoration = "manual"; // the browser's own comes before the rows do
    let later = 0;
    const scrolled = () => {
      clearTimeout(later);
      later = setTimeout(keep, 100);
    };
    const left = () => clearTimeout(later); // the entry is another now
    addEventListener("scroll", scrolled, { passive: true });
    addEventListener("popstate", left);
    document.addEventListener("click", keep, true); // a link may leave before that
    return () => {
      removeEventListener("scroll", scrolled);
      removeEventListener("popstate", left);
      document.removeEventListener("click", keep, true);
    };
  }, []);
  useEffect(() => {
    if (!first.current) main.current?.focus({ preventScroll: true });
    const y = history.state?.y ?? (first.current ? null : 0);
    first.current = false;
    return y === null ? undefined : scrollWhenHigh(y);
  }, [place]);
}

/* Scrolls there once the page is high enough, unless the reader scrolls first. Returns what ends the waiting. */
function scrollWhenHigh(y) {
  const end = () => {
    sizes.disconnect();
    clearTimeout(late);
    BY_HAND.forEach((name) => removeEventListener(name, end));
  };
  const sizes = new ResizeObserver(() => {
    scrollTo(0, y);
    if (Math.abs(scrollY - y) < 2) end();
  });
  const late = setTimeout(end, PATIENCE_MS);
  BY_HAND.forEach((name) => addEventListener(name, end, { passive: true }));
  scrollTo(0, y);
  sizes.observe(document.body); // it calls at once
  return end;
}
