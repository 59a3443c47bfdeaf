/* Quantities of tokens as a few shades. A token carries one class of each; which one shows is its container's class. */
import { figure, isNumber, signed } from "./format.js";

const CHANCES = [0.99, 0.9, 0.5, 0.2, 0.05, 0.01].map(Math.log);
const RATIOS = [0.8, 0.9, 0.97, 1.03, 1.11, 1.25];
const ADVANTAGES = [-1, -0.5, -1e-9, 1e-9, 0.5, 1];

export const KINDS = [
  ["logprob", "log-probability", "of the sampler, in nats"],
  ["ratio", "ratio", "trainer's probability over the sampler's"],
  ["advantage", "advantage", "of the token, as it was trained"],
  ["version", "version", "of the weights that sampled it"],
  ["mask", "mask", "who wrote it, and whether it was trained"],
];

function above(bounds, value) {
  let shade = 0;
  while (shade < bounds.length && value > bounds[shade]) shade += 1;
  return shade;
}

export function shadeOfLogprob(value) {
  return CHANCES.filter((bound) => value < bound).length;
}

export function maskOf(tokens, index) {
  const origin = tokens.origins[tokens.origin[index]];
  return origin === "policy" ? (tokens.mask[index] ? "sampled" : "masked") : origin === "prompt" ? "prompt" : "environment";
}

/* The classes of one token: t l2 r3 a5 v0 m-sampled. What is unknown has no class, so no colour. */
export function classesOf(tokens, index, oldest) {
  const found = ["t", `m-${maskOf(tokens, index)}`];
  const of = (column) => (tokens[column] ? tokens[column][index] : null);
  if (isNumber(of("logprob"))) found.push(`l${shadeOfLogprob(of("logprob"))}`);
  if (isNumber(of("ratio"))) found.push(`r${above(RATIOS, of("ratio"))}`);
  if (isNumber(of("advantage"))) found.push(`a${above(ADVANTAGES, of("advantage"))}`);
  if (isNumber(of("version"))) found.push(`v${(of("version") - oldest) % 6}`);
  return found.join(" ");
}

/* The steps of a kind's scale: [class, words]. versions: those that occur. */
export function scaleOf(kind, versions, oldest) {
  if (kind === "logprob") return ["p > 0.99", "0.9", "0.5", "0.2", "0.05", "0.01", "less"].map((words, i) => [`l${i}`, words]);
  if (kind === "ratio") return ["< 0.8", "0.9", "0.97", "1", "1.03", "1.11", "> 1.25"].map((words, i) => [`r${i}`, words]);
  if (kind === "advantage") return ["< −1", "−0.5", "< 0", "0", "> 0", "0.5", "> 1"].map((words, i) => [`a${i}`, words]);
  if (kind === "version") return versions.map((version) => [`v${(version - oldest) % 6}`, `version ${version}`]);
  return [["m-sampled", "sampled and trained"], ["m-masked", "sampled, not trained"], ["m-prompt", "opening prompt"], ["m-environment", "environment and template"]];
}

/* What is known of one token: [name, value, words]. */
export function describe(tokens, index) {
  const of = (column) => (tokens[column] ? tokens[column][index] : null);
  const logprob = of("logprob");
  return [
    ["token", `${index} of ${tokens.count}`],
    ["id", String(of("id"))],
    ["log-probability", isNumber(logprob) ? `${signed(logprob, 4)} nats` : "not sampled"],
    ["probability", isNumber(logprob) ? figure(Math.exp(logprob), 4) : "–"],
    ["ratio", isNumber(of("ratio")) ? figure(of("ratio"), 4) : "–"],
    ["advantage", isNumber(of("advantage")) ? signed(of("advantage")) : "–"],
    ["version", isNumber(of("version")) && of("version") >= 0 ? String(of("version")) : "–"],
    ["origin", `${tokens.origins[of("origin")]}${of("mask") ? ", trained" : ", not trained"}`],
    ["turn", isNumber(of("turn")) ? String(of("turn") + 1) : "–"],
  ];
}
