/* How wide elements are, and whether they are near the view: drawings use the page's own scale, and wait to be seen. */
import { useLayoutEffect, useRef, useState } from "../vendor/htm-preact.module.js";

const MARGIN = 0.5; // of the view's height, above and below it
const nearing = new Map(); // element -> what is called with its width, once
const watch = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting, boundingClientRect } of entries) {
      if (!isIntersecting || !nearing.has(target)) continue;
      watch.unobserve(target);
      nearing.get(target)(Math.floor(boundingClientRect.width));
      nearing.delete(target);
    }
  },
  { rootMargin: `${100 * MARGIN}% 0px` },
);

/* Calls once with the element's width when it is near the view, at once if it is now. Returns what ends the waiting. */
export function whenNear(element, call) {
  const { top, bottom, width } = element.getBoundingClientRect();
  if (bottom > -MARGIN * innerHeight && top < (1 + MARGIN) * innerHeight) {
    call(Math.floor(width));
    return () => {};
  }
  nearing.set(element, call);
  watch.observe(element);
  return () => {
    watch.unobserve(element);
    nearing.delete(element);
  };
}

/* [ref, width]: put ref on a block element; width is 0 until it is measured. */
export function useWidth() {
  const element = useRef(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const sizes = new ResizeObserver(([{ contentRect }]) => setWidth(Math.floor(contentRect.width)));
    sizes.observe(element.current);
    return () => sizes.disconnect();
  }, []);
  return [element, width];
}
