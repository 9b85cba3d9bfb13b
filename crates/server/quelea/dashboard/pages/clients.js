// The list of clients, with filters that are part of the address.

import { useEffect } from "../vendor/hooks.js";
import { del, has, may, post, query as queryOf } from "../api.js";
import { duration, number } from "../format.js";
import { List } from "../list.js";
import { BANS, Filters, Online, Page, When, act, ask, html, useGet } from "../ui.js";

export const clientHref = (namespace, id) =>
  `#/clients/${encodeURIComponent(namespace)}/${encodeURIComponent(id)}`;

const FILTERS = ["client_id", "username", "address", "connected", "queued_min", "namespace"];

// Without filters the broker knows how many there are.
function knownCount(values, broker) {
  const { connected, ...others } = values;
  if (!broker || Object.values(others).some(Boolean)) return null;
  return { "": broker.sessions, true: broker.connections }[connected] ?? null;
}

export function Clients({ query, broker }) {
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
        known=${knownCount(values, broker)} columns=${columns(namespaces.length > 0)} actions=${actions()}
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

// What an operator may do with the rows that are selected.
function actions() {
  const text = (rows) => `${rows.slice(0, 5).map((row) => row.client_id).join(", ")}${rows.length > 5 ? `, and ${number(rows.length - 5)} others` : ""}.`;
  const one = ({ client_id, namespace }) => ({ client_id, namespace });
  return [
    may("operator") && {
      label: "Disconnect", done: "Disconnected", danger: true,
      ask: (rows) => ask({
        title: `Disconnect ${number(rows.length)} clients?`, label: "Disconnect", danger: true,
        text: `${text(rows)} Their connections are closed with reason 0x98. Sessions stay, and clients may reconnect.`,
      }),
      run: (row) => post("/client/disconnect", undefined, one(row)),
    },
    may("operator") && {
      label: "Ban", done: "Banned", danger: true,
      ask: (rows) => ask({
        title: `Ban ${number(rows.length)} clients?`, label: "Ban", danger: true,
        text: `${text(rows)} Their connections are closed, and the client IDs cannot connect until the bans end. Sessions stay.`,
        fields: [{ name: "secs", title: "For", options: BANS, value: "3600" }],
      }),
      run: (row, { secs }) => post("/client/disconnect", undefined, { ...one(row), ban_secs: secs }),
    },
    may("admin") && {
      label: "Delete sessions", done: "Deleted", danger: true,
      ask: (rows) => ask({
        title: `Delete ${number(rows.length)} sessions?`, label: "Delete sessions", danger: true,
        text: `${text(rows)} Subscriptions and queued messages are deleted, and connections are closed. It cannot be undone.`,
      }),
      run: (row) => del("/client", one(row)),
    },
  ].filter(Boolean);
}

const columns = (hasNamespaces) => [
  { title: "", cell: (row) => html`<${Online} is=${row.connected} />` },
  { title: "Client ID", wide: true, sort: (row) => row.client_id, cell: (row) => html`<a class="mono" href=${clientHref(row.namespace, row.client_id)}>${row.client_id || "(empty)"}</a>` },
  hasNamespaces && { title: "Namespace", sort: (row) => row.namespace, cell: (row) => row.namespace },
  { title: "User", sort: (row) => row.username, cell: (row) => row.username ?? html`<span class="dim">–</span>` },
  { title: "Address", sort: (row) => row.address, cell: (row) => (row.address ? html`<span class="mono">${row.address}</span>` : html`<span class="dim">–</span>`) },
  { title: "MQTT", sort: (row) => row.protocol, cell: (row) => row.protocol ?? html`<span class="dim">–</span>` },
  { title: "Subscriptions", num: true, sort: (row) => row.subscriptions, cell: (row) => number(row.subscriptions) },
  { title: "Queued", num: true, sort: (row) => row.queued_messages, cell: (row) => loud(row.queued_messages) },
  { title: "In flight", num: true, sort: (row) => row.in_flight, cell: (row) => number(row.in_flight) },
  { title: "In", num: true, sort: (row) => row.messages_received, cell: (row) => number(row.messages_received) },
  { title: "Out", num: true, sort: (row) => row.messages_sent, cell: (row) => number(row.messages_sent) },
  { title: "Connected", num: true, sort: (row) => row.connected_at && Date.parse(row.connected_at), cell: (row) => html`<${When} ms=${row.connected_at && Date.parse(row.connected_at)} />` },
  { title: "Last packet", num: true, sort: (row) => row.silent_secs, cell: (row) => (row.connected ? `${duration(row.silent_secs)} ago` : html`<span class="dim">${row.expires_in_secs == null ? "–" : `expires in ${duration(row.expires_in_secs)}`}</span>`) },
].filter(Boolean);

const loud = (count) => (count > 0 ? html`<strong>${number(count)}</strong>` : "0");
