/* Evaluations in an address: `RUN@STEP`, several of them in one parameter, some with the number of a task. */
import { get, runPath } from "./data.js";

export function parseSides(text) {
  return (text ?? "").split(",").filter(Boolean).map((one) => {
    const [run, step, task] = one.split("@").map(decodeURIComponent);
    return { run, step: Number(step), task };
  });
}

export function sidesText(sides) {
  return sides.map(({ run, step, task }) => [run, step, ...(task === undefined ? [] : [task])].map(encodeURIComponent).join("@")).join(",");
}

export function getEvaluation({ run, step }) {
  return get(runPath(run, `/evaluations/${step}`));
}
