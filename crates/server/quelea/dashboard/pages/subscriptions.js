// The subscriptions of all clients.

import { query as queryOf } from "../api.js";
import { List } from "../list.js";
import { Filters, Page, html, useGet } from "../ui.js";
import { clientHref } from "./clients.js";

const FILTERS = ["topic", "filter", "client_id", "shared", "namespace"];

export function Subscriptions({ query, broker }) {
  const namespaces = useGet("/namespaces", { limit: 1000 }).data?.items ?? [];
  const values = Object.fromEntries(FILTERS.map((name) => [name, query[name] ?? ""]));
  const fields = [
    { name: "topic", title: "Matches the topic", search: true, type: "search" },
    { name: "filter", title: "Filter" },
    { name: "client_id", title: "Client ID contains" },
    { name: "shared", title: "Kind", options: [["", "all"], ["true", "shared"], ["false", "not shared"]] },
    namespaces.length > 0 && {
      name: "namespace", title: "Namespace",
      options: [["", "all"], ["default", "default"], ...namespaces.map(({ name }) => [name, name])],
    },
  ].filter(Boolean);
  const change = (next) => { location.hash = `#/subscriptions${queryOf(next)}`; };
  return html`
    <${Page} title="Subscriptions">
      <${Filters} values=${values} fields=${fields} onChange=${change} />
      <${List} path="/subscriptions" params=${values} label="Subscriptions" known=${Object.values(values).some(Boolean) ? null : broker?.subscriptions} columns=${columns(namespaces.length > 0)}
        keyOf=${(row) => [row.namespace, row.client_id, row.share, row.filter].join(" ")}
        empty=${Object.values(values).some(Boolean) ? "No subscription matches these filters." : "No client has subscribed."} />
    <//>`;
}

const yes = (is) => (is ? "yes" : html`<span class="dim">no</span>`);

const columns = (hasNamespaces) => [
  { title: "Filter", wide: true, sort: (row) => row.filter, cell: (row) => html`<span class="mono">${row.filter}</span>` },
  { title: "Shared group", sort: (row) => row.share, cell: (row) => row.share ?? html`<span class="dim">–</span>` },
  { title: "Client ID", wide: true, sort: (row) => row.client_id, cell: (row) => html`<a class="mono" href=${clientHref(row.namespace, row.client_id)}>${row.client_id}</a>` },
  hasNamespaces && { title: "Namespace", sort: (row) => row.namespace, cell: (row) => row.namespace },
  { title: "QoS", num: true, sort: (row) => row.qos, cell: (row) => row.qos },
  { title: "No Local", sort: (row) => row.no_local, cell: (row) => yes(row.no_local) },
  { title: "Retain As Published", sort: (row) => row.retain_as_published, cell: (row) => yes(row.retain_as_published) },
].filter(Boolean);
