// Namespaces with their limits and usage.

import { useState } from "../vendor/hooks.js";
import { has, may, post } from "../api.js";
import { bytes, number } from "../format.js";
import { List } from "../list.js";
import { Badge, Page, act, html } from "../ui.js";

const LIVE_MS = 5000;

export function Namespaces() {
  const [version, setVersion] = useState(0);
  const hold = async ({ name, state }) => {
    const suspends = state === "open";
    const what = suspends ? "suspend" : "resume";
    const is = await act({
      title: `${suspends ? "Suspend" : "Resume"} the namespace ${name}?`, label: suspends ? "Suspend" : "Resume", danger: suspends,
      text: suspends
        ? "Its clients are disconnected (0x98), and new connections are refused. Sessions and messages stay. It stays suspended after a restart."
        : "Its clients may connect again.",
    }, () => post(`/namespace/${what}`, undefined, { name }), `${name} was ${suspends ? "suspended" : "resumed"}.`);
    if (is) setVersion(version + 1);
  };
  const canHold = may("admin") && has("POST /namespace/suspend");
  const columns = canHold ? [...COLUMNS, {
    title: "", num: true,
    cell: (row) => html`<button class="small" onClick=${() => hold(row)}>${row.state === "open" ? "Suspend" : "Resume"}</button>`,
  }] : COLUMNS;
  return html`
    <${Page} title="Namespaces" note="In addition to the default one, to which the limits of the broker apply.">
      <${List} path="/namespaces" label="Namespaces" every=${LIVE_MS} keyOf=${(row) => row.name} columns=${columns} version=${version}
        empty="There is only the namespace default. [[namespaces]] in the configuration adds others." />
    <//>`;
}

const write = (name) => (name.endsWith("bytes") || name.startsWith("bytes") ? bytes : number);

function quota(row, name) {
  const { max, count, refused } = row.quotas.find((one) => one.name === name) ?? {};
  if (count == null) return "–";
  const show = write(name);
  const kind = refused > 0 ? `the limit applied ${number(refused)} times` : "";
  return html`<span title=${kind}>${show(count)}${max != null && html`<span class="dim"> of ${show(max)}</span>`}
    ${refused > 0 && html` <${Badge} kind="warn">limited<//>`}</span>`;
}

const COLUMNS = [
  { title: "Name", sort: (row) => row.name, cell: (row) => html`<a href=${`#/clients?namespace=${encodeURIComponent(row.name)}`}>${row.name}</a>` },
  { title: "State", sort: (row) => row.state, cell: (row) => (row.state === "open" ? "open" : html`<${Badge} kind="warn">${row.state}<//>`) },
  { title: "Made by", sort: (row) => row.maker, cell: (row) => row.maker },
  { title: "Host names", cell: (row) => row.hosts.join(", ") || html`<span class="dim">–</span>` },
  ...["connections", "sessions", "subscriptions", "retained_messages", "queued_bytes", "logged_bytes"].map((name) => ({
    title: name.replaceAll("_", " ").replace(/^./, (first) => first.toUpperCase()), num: true, cell: (row) => quota(row, name),
  })),
];
