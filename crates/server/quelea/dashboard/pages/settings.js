// The configuration in force, each value with its source.

import { useState } from "../vendor/hooks.js";
import { del, has, may, post, put } from "../api.js";
import { relative } from "../format.js";
import { Empty, Fault, Filters, Page, Section, Table, act, html, useGet } from "../ui.js";

const LEVELS = ["error", "warn", "info", "debug", "trace"].map((level) => [level, level]);
const SPANS = [["600", "10 minutes"], ["3600", "1 hour"], ["86400", "1 day"], ["", "until a restart"]];

export function Settings() {
  const { data, problem, reload } = useGet("/settings");
  const [filters, setFilters] = useState({ text: "", which: "" });
  const wanted = filters.text.toLowerCase();
  const rows = (data?.items ?? []).filter(({ key, value, origin, ...rest }) =>
    `${key} ${value}`.toLowerCase().includes(wanted) && WHICH[filters.which]({ origin, ...rest }));
  const sections = Map.groupBy(rows, ({ key }) => key.split(".").slice(0, -1).join("."));
  const change = async (row) => {
    const is = await act({
      title: `Set ${row.key}`, label: "Set",
      text: `Allowed: ${row.allowed}. It lasts until a restart, or until the configuration has another value for it, and is of this node only.`,
      fields: [{ name: "value", title: "Value", value: plain(row.value) }],
    }, ({ value }) => put(`/settings/${encodeURIComponent(row.key)}`, { value }), `${row.key} was set.`);
    if (is) reload();
  };
  const reset = async (row) => {
    const is = await act({
      title: `Reset ${row.key}?`, label: "Reset", text: "The configured value is in force again.",
    }, () => del(`/settings/${encodeURIComponent(row.key)}`), `${row.key} was reset.`);
    if (is) reload();
  };
  const canSet = may("admin") && has("PUT /settings/{key}");
  const columns = canSet ? [...COLUMNS.slice(0, 2), {
    title: "",
    cell: (row) => row.changes_while_running && html`
      <button class="small" onClick=${() => change(row)}>Set</button>
      ${row.source === "running" && html` <button class="small" onClick=${() => reset(row)}>Reset</button>`}`,
  }, ...COLUMNS.slice(2)] : COLUMNS;
  return html`
    <${Page} title="Settings" note="The configuration in force on this node, except listeners." actions=${html`<${Actions} onReload=${reload} />`}>
      <${Fault} problem=${problem} />
      <${Filters} values=${filters} onChange=${setFilters} fields=${[
        { name: "text", title: "Contains", search: true, type: "search" },
        { name: "which", title: "Show", options: [["", "all"], ["set", "only those that were set"], ["live", "changeable"]] },
      ]} />
      ${data && rows.length === 0 && html`<${Empty}>No setting matches.<//>`}
      ${[...sections].map(([name, some]) => html`
        <${Section} title=${name} key=${name}>
          <${Table} label=${name} kind="fixed" rows=${some} keyOf=${(row) => row.key} columns=${columns} />
        <//>`)}
    <//>`;
}

const WHICH = {
  "": () => true,
  set: (row) => row.origin !== "default",
  live: (row) => row.changes_while_running,
};

// A value of TOML as it is written in an environment variable.
const plain = (value) => (value.startsWith('"') ? JSON.parse(value) : value);

function reloaded({ parts, taken_back: taken }) {
  const refused = parts.filter((part) => !part.reloaded);
  if (refused.length === 0) return taken?.length ? `Everything was reloaded. Configured again: ${taken.join(", ")}.` : "Everything was reloaded.";
  return `Not reloaded: ${refused.map(({ name, error }) => `${name} (${error})`).join("; ")}`;
}

function Actions({ onReload }) {
  const level = useGet(has("GET /log-level") ? "/log-level" : null);
  const reload = async () => await act({
    title: "Reload the configuration?", label: "Reload",
    text: "Passwords, access rules, bans, namespaces and certificates are read again, and settings that change while running, as by SIGHUP. A part that cannot be used stays as it was.",
  }, () => post("/reload"), reloaded) && onReload();
  const setLevel = async () => {
    const is = await act({
      title: "Set the log level", label: "Set",
      text: `The configured level is ${level.data.configured}.`,
      fields: [
        { name: "level", title: "Level", options: LEVELS, value: level.data.level },
        { name: "secs", title: "For", options: SPANS, value: "600" },
      ],
    }, ({ level: word, secs }) => put("/log-level", { level: word, for_secs: secs ? Number(secs) : null }), "The log level was set.");
    if (is) level.reload();
  };
  const until = level.data?.until && `, ends ${relative(Date.parse(level.data.until))}`;
  return html`
    ${level.data && html`<span class="dim">log level ${level.data.level}${until}</span>`}
    ${may("admin") && level.data && html`<button onClick=${setLevel}>Log level</button>`}
    ${may("admin") && has("POST /reload") && html`<button onClick=${reload}>Reload</button>`}`;
}

const COLUMNS = [
  { title: "Key", sort: (row) => row.key, cell: (row) => html`<span class="mono">${row.key.split(".").at(-1)}</span>` },
  { title: "Value", wide: true, sort: (row) => row.value, cell: (row) => html`<span class="mono">${row.value}</span>` },
  { title: "Source", sort: (row) => row.origin, cell: (row) => html`<span class=${row.origin === "default" ? "dim" : ""}>${row.origin}</span>` },
];
