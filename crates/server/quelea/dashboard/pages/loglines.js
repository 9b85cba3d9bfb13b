// The last lines of the log.

import { useState } from "../vendor/hooks.js";
import { List } from "../list.js";
import { Badge, Clamped, Filters, Page, When, html } from "../ui.js";

const LIVE_MS = 2000;
const LEVELS = [["info", "all"], ["warn", "warnings and errors"], ["error", "errors"]];

export function LogLines() {
  const [filters, setFilters] = useState({ level: "info" });
  return html`
    <${Page} title="Log" note="The last 500 warnings and errors, and 500 other lines. The log itself has all.">
      <${Filters} values=${filters} onChange=${setFilters} fields=${[
        { name: "level", title: "Show", options: LEVELS },
      ]} />
      <${List} path="/log-lines" params=${filters} label="Lines" columns=${COLUMNS} kind="text" every=${LIVE_MS} empty="No such line since the start." />
    <//>`;
}

const KINDS = { error: "bad", warn: "warn" };

const COLUMNS = [
  { title: "Time", sort: (row) => row.time, cell: (row) => html`<${When} ms=${Date.parse(row.time)} />` },
  { title: "Level", sort: (row) => row.level, cell: (row) => (KINDS[row.level] ? html`<${Badge} kind=${KINDS[row.level]}>${row.level}<//>` : row.level) },
  { title: "Line", wide: "rest", sort: (row) => row.text, cell: (row) => html`<${Clamped}><span class="mono">${row.text}</span><//>` },
];
