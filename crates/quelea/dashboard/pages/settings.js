// The configuration in force, each value with its source.

import { useState } from "../vendor/hooks.js";
import { Empty, Fault, Filters, Page, Section, Table, html, useGet } from "../ui.js";

export function Settings() {
  const { data, problem } = useGet("/settings");
  const [filters, setFilters] = useState({ text: "", which: "" });
  const wanted = filters.text.toLowerCase();
  const rows = (data?.items ?? []).filter(({ key, value, origin }) =>
    `${key} ${value}`.toLowerCase().includes(wanted) && (!filters.which || origin !== "default"));
  const sections = Map.groupBy(rows, ({ key }) => key.split(".").slice(0, -1).join("."));
  return html`
    <${Page} title="Settings" note="The configuration in force, except listeners.">
      <${Fault} problem=${problem} />
      <${Filters} values=${filters} onChange=${setFilters} fields=${[
        { name: "text", title: "Contains", search: true, type: "search" },
        { name: "which", title: "Show", options: [["", "all"], ["set", "only those that were set"]] },
      ]} />
      ${data && rows.length === 0 && html`<${Empty}>No setting matches.<//>`}
      ${[...sections].map(([name, some]) => html`
        <${Section} title=${name} key=${name}>
          <${Table} label=${name} fixed rows=${some} keyOf=${(row) => row.key} columns=${COLUMNS} />
        <//>`)}
    <//>`;
}

const COLUMNS = [
  { title: "Key", cell: (row) => html`<span class="mono">${row.key.split(".").at(-1)}</span>` },
  { title: "Value", wide: true, cell: (row) => html`<span class="mono">${row.value}</span>` },
  { title: "Source", cell: (row) => html`<span class=${row.origin === "default" ? "dim" : ""}>${row.origin}</span>` },
];
