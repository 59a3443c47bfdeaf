/* When to ask again about a run that goes on. */
import { useEffect, useRef, useState } from "../vendor/htm-preact.module.js";
import { listen } from "./data.js";

/* Counts up when the run went on: at once, then at most every two seconds. */
export function useFresh(id, live) {
  const [fresh, setFresh] = useState(0);
  const waiting = useRef(0);
  const last = useRef(0);
  useEffect(() => {
    if (!live) return;
    const later = () => {
      const rest = Math.max(0, last.current + 2000 - performance.now());
      waiting.current ||= setTimeout(() => {
        waiting.current = 0;
        last.current = performance.now();
        setFresh((before) => before + 1);
      }, rest);
    };
    const end = listen(id, { step: later, status: later, event: later, steering: later, processes: later, reset: later, evaluation: later });
    return () => {
      end();
      clearTimeout(waiting.current);
      waiting.current = 0;
    };
  }, [id, live]);
  return [fresh, () => setFresh((before) => before + 1)];
}
