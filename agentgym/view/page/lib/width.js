/* The width in pixels that an element has, so that drawings use the page's own scale. */
import { useLayoutEffect, useRef, useState } from "../vendor/htm-preact.module.js";

/* [ref, width]: put ref on a block element; width is 0 until it is measured. */
export function useWidth() {
  const element = useRef(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const measure = () => element.current && setWidth(element.current.clientWidth);
    const watch = new ResizeObserver(measure);
    watch.observe(element.current);
    measure();
    return () => watch.disconnect();
  }, []);
  return [element, width];
}
