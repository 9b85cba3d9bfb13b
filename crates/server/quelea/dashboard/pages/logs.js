// The durable log of each shard.

import { bytes, number } from "../format.js";
import { Badge, Empty, Fault, Page, Table, html, useGet } from "../ui.js";

const LIVE_MS = 2000;

export function Logs() {
  const { data, problem } = useGet("/logs", undefined, LIVE_MS);
  const rows = data?.items ?? [];
  return html`
    <${Page} title="Durable log" note="One for each shard of state.">
      <${Fault} problem=${problem} />
      ${data && rows.length === 0 && html`<${Empty}>Nothing is stored: the durability level is memory.<//>`}
      ${rows.length > 0 && html`<${Table} label="Logs" rows=${rows} keyOf=${(row) => row.shard} columns=${columns(rows[0])} />`}
    <//>`;
}

const title = (name) => name.replace(/_total$/, "").replaceAll("_", " ").replace(/^./, (first) => first.toUpperCase());

const columns = (first) => [
  { title: "Shard", num: true, sort: (row) => row.shard, cell: (row) => row.shard },
  { title: "State", sort: (row) => row.state, cell: (row) => (row.state === "ready" ? "ready" : html`<${Badge} kind="bad">${row.state}<//>`) },
  ...first.figures.map(({ name }, place) => ({
    title: title(name), num: true,
    cell: ({ figures }) => (name.includes("bytes") ? bytes : number)(figures[place].value),
  })),
];
