/* Episodes and their groups, from the server or from the rows of an exported file. */
import { exported, get, query, runPath } from "./data.js";
import { choose } from "./rows.js";

export const EXPORTED_ROWS = "/episodes?source=all&limit=500&sort=-step";

export async function episodesPage(run, params) {
  if (!exported) return get(runPath(run, `/episodes${query(params)}`));
  const all = await get(runPath(run, EXPORTED_ROWS));
  return { ...all, ...choose(all.rows, params) };
}

export async function groupOf(run, source, step, group) {
  if (!exported) return get(runPath(run, `/groups/${source}/${step}/${group}`));
  const { rows } = await get(runPath(run, EXPORTED_ROWS));
  const members = rows.filter((row) => row.source === source && row.step === Number(step) && row.group === Number(group));
  members.sort((a, b) => a.index - b.index);
  const finals = {};
  let prompt = [];
  for (const row of members) {
    const episode = await get(runPath(run, `/episodes/${row.key}`)).catch(() => null);
    finals[row.key] = episode?.messages.findLast((message) => message.role === "assistant")?.content ?? "(not in the exported file)";
    prompt = episode?.task.prompt ?? prompt;
  }
  return { source, step, group, task_id: members[0]?.task_id ?? "", prompt, rows: members, finals, neighbours: {} };
}
