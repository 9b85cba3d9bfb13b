// The list of clients, with filters that are part of the address.

import { useEffect } from "../vendor/hooks.js";
import { has, may, post, query as queryOf } from "../api.js";
import { duration, number } from "../format.js";
import { Filters, List, Online, Page, act, html, useGet } from "../ui.js";

export const clientHref = (namespace, id) =>
  `#/clients/${encodeURIComponent(namespace)}/${encodeURIComponent(id)}`;

const FILTERS = ["client_id", "username", "address", "connected", "queued_min", "namespace"];

export function Clients({ query }) {
  const namespaces = useGet("/namespaces", { limit: 1000 }).data?.items ?? [];
  const values = Object.fromEntries(FILTERS.map((name) => [name, query[name] ?? ""]));
  useEffect(() => {
    if (query.search) document.querySelector("[data-search]")?.focus();
  }, [query.search]);
  const { connected, ...chosen } = values;
  const change = (next) => {
    const hash = `#/clients${queryOf(next)}`;
    if (hash !== location.hash) location.hash = hash;
  };
  const fields = [
    { name: "client_id", title: "Client ID contains", search: true, type: "search" },
    { name: "username", title: "Username" },
    { name: "address", title: "Address begins with", place: "10.0.0.7:" },
    { name: "connected", title: "State", options: [["", "all"], ["true", "connected"], ["false", "offline"]] },
    { name: "queued_min", title: "Queued at least", type: "number" },
    namespaces.length > 0 && {
      name: "namespace", title: "Namespace",
      options: [["", "all"], ["default", "default"], ...namespaces.map(({ name }) => [name, name])],
    },
  ].filter(Boolean);
  return html`
    <${Page} title="Clients" note="Slow clients have messages queued or in flight."
      actions=${may("operator") && has("POST /disconnect") && Object.values(chosen).some(Boolean)
        && html`<button class="danger" onClick=${() => disconnectAll(chosen)}>Disconnect all that match</button>`}>
      <${Filters} values=${values} fields=${fields} onChange=${change} />
      <${List} path="/clients" params=${values} label="Clients" keyOf=${(row) => `${row.namespace} ${row.client_id}`}
        columns=${columns(namespaces.length > 0)}
        empty=${Object.values(values).some(Boolean) ? "No client matches these filters." : "No client has connected yet."} />
    <//>`;
}

function disconnectAll(chosen) {
  const given = Object.entries(chosen).filter(([, value]) => value);
  const text = given.map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`).join(", ");
  const isWhole = given.every(([name]) => name === "namespace");
  act({
    title: isWhole ? `Disconnect all clients of ${chosen.namespace}?` : "Disconnect all clients that match?", label: "Disconnect all", danger: true,
    text: `Filters: ${text}. Their connections are closed with reason 0x98. Sessions stay, and clients may reconnect.`,
  }, () => post("/disconnect", undefined, { ...chosen, all: isWhole || null }), ({ disconnected }) => `${number(disconnected)} clients were disconnected.`);
}

const columns = (hasNamespaces) => [
  { title: "", cell: (row) => html`<${Online} is=${row.connected} />` },
  { title: "Client ID", wide: true, cell: (row) => html`<a class="mono" href=${clientHref(row.namespace, row.client_id)}>${row.client_id || "(empty)"}</a>` },
  hasNamespaces && { title: "Namespace", cell: (row) => row.namespace },
  { title: "User", cell: (row) => row.username ?? html`<span class="dim">–</span>` },
  { title: "Address", cell: (row) => (row.address ? html`<span class="mono">${row.address}</span>` : html`<span class="dim">–</span>`) },
  { title: "MQTT", cell: (row) => row.protocol ?? html`<span class="dim">–</span>` },
  { title: "Subscriptions", num: true, cell: (row) => number(row.subscriptions) },
  { title: "Queued", num: true, cell: (row) => loud(row.queued_messages) },
  { title: "In flight", num: true, cell: (row) => number(row.in_flight) },
  { title: "Last packet", num: true, cell: (row) => (row.connected ? `${duration(row.silent_secs)} ago` : html`<span class="dim">${row.expires_in_secs == null ? "–" : `expires in ${duration(row.expires_in_secs)}`}</span>`) },
].filter(Boolean);

const loud = (count) => (count > 0 ? html`<strong>${number(count)}</strong>` : "0");
