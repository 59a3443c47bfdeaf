/* Filters, sorts and cuts the rows of an exported file, as the server does for a folder. */

import { isNumber } from "./format.js";

const SAME = ["step", "group", "outcome", "stop", "difficulty", "category"];
const FLAGS = ["success", "trained"];

export function choose(rows, { sort = "", offset = 0, limit = 50, ...filters }) {
  const matched = rows.filter((row) => matches(row, filters));
  const order = sort.split(",").filter(Boolean).map((key) => (key[0] === "-" ? [key.slice(1), -1] : [key, 1]));
  const sorted = order.length ? matched.toSorted((a, b) => compare(a, b, order)) : matched;
  return { total: rows.length, matched: matched.length, offset, limit, rows: sorted.slice(offset, offset + limit) };
}

function matches(row, filters) {
  const { source, step_to, task, text, error, reward_min, reward_max, stale_min, cost_min, tool_errors } = filters;
  if (source && source !== "all" && row.source !== source) return false;
  if (step_to !== undefined && step_to !== "") {
    if (row.step > Number(step_to) || (filters.step && row.step < Number(filters.step))) return false;
  } else if (filters.step && row.step !== Number(filters.step)) return false;
  if (SAME.some((key) => key !== "step" && filters[key] && String(row[key]) !== String(filters[key]))) return false;
  if (FLAGS.some((key) => filters[key] && String(row[key]) !== filters[key])) return false;
  if (task && !row.task_id.includes(task)) return false;
  if (text && !row.episode_id.includes(text)) return false;
  if (error && (error === "any" ? !row.error : row.error !== error)) return false;
  if (reward_min && !(row.reward >= Number(reward_min))) return false;
  if (reward_max && !(row.reward <= Number(reward_max))) return false;
  if (stale_min && !(row.staleness >= Number(stale_min))) return false;
  if (cost_min && !(isNumber(row.cost) && row.cost >= Number(cost_min))) return false;
  return !tool_errors || row.tool_errors > 0;
}

function value(row, key) {
  return key.startsWith("reward/") || key.startsWith("rewards.") ? row.rewards?.[key.replace(/^reward(\/|s\.)/, "")] : row[key];
}

/* Rows by what `value` says of them; unknown values come last in either direction. */
export function byKey(rows, value, falls) {
  const order = [["value", falls ? -1 : 1]];
  return rows.map((row) => ({ row, value: value(row) })).sort((a, b) => compare(a, b, order)).map(({ row }) => row);
}

/* Unknown values come last in either direction. */
function compare(a, b, order) {
  for (const [key, direction] of order) {
    const [x, y] = [value(a, key), value(b, key)];
    if (x === y) continue;
    if (x === null || x === undefined) return 1;
    if (y === null || y === undefined) return -1;
    return x < y ? -direction : direction;
  }
  return 0;
}
