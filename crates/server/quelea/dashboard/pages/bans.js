// Bans of client IDs, users and addresses.

import { useState } from "../vendor/hooks.js";
import { del, may, post } from "../api.js";
import { List } from "../list.js";
import { Page, When, act, html, useGet } from "../ui.js";

const KINDS = [["client", "client ID"], ["user", "username"], ["address", "address or network"]];
const SPANS = [["", "no end"], ["600", "10 minutes"], ["3600", "1 hour"], ["43200", "12 hours"], ["604800", "7 days"], ["2592000", "30 days"]];

export function Bans() {
  const [version, setVersion] = useState(0);
  const namespaces = useGet("/namespaces", { limit: 1000 }).data?.items ?? [];
  const again = () => setVersion((count) => count + 1);
  const add = async () => {
    const is = await act({
      title: "Add a ban", label: "Ban", danger: true,
      text: "Open connections that it applies to are closed (0x98), and new ones are refused.",
      fields: [
        { name: "kind", title: "Kind", options: KINDS, value: "client" },
        { name: "who", title: "Who", required: true, hint: "A client ID, a username, an address, or a network such as 192.0.2.0/24." },
        { name: "secs", title: "For", options: SPANS, value: "3600" },
        namespaces.length > 0 && {
          name: "namespace", title: "Namespace", value: "*",
          options: [["*", "all"], ["default", "default"], ...namespaces.map(({ name }) => [name, name])],
        },
      ].filter(Boolean),
    }, ({ kind, who, secs, namespace }) => post("/bans", {
      kind, who,
      for_secs: secs ? Number(secs) : null,
      namespace: kind === "address" ? null : namespace ?? null,
    }), ({ who }) => `${who} is banned.`);
    if (is) again();
  };
  const remove = async ({ kind, who, namespace }) => {
    const is = await act({
      title: `Remove the ban of ${who}?`, label: "Remove", text: "It may connect again at once.",
    }, () => del("/bans", { kind, who, namespace: kind === "address" ? null : namespace }), `The ban of ${who} was removed.`);
    if (is) again();
  };
  return html`
    <${Page} title="Bans" actions=${may("operator") && html`<button onClick=${add}>Add a ban</button>`}>
      <${List} path="/bans" label="Bans" version=${version} columns=${columns(remove)}
        keyOf=${(row) => `${row.kind} ${row.namespace} ${row.who}`} empty="Nobody is banned." />
    <//>`;
}

const columns = (remove) => [
  { title: "Kind", sort: (row) => row.kind, cell: (row) => row.kind },
  { title: "Who", wide: true, sort: (row) => row.who, cell: (row) => html`<span class="mono">${row.who}</span>` },
  { title: "Namespace", sort: (row) => row.namespace, cell: (row) => (row.namespace === "*" ? "all" : row.namespace) },
  { title: "Ends", sort: (row) => row.until, cell: (row) => (row.until ? html`<${When} ms=${Date.parse(row.until)} />` : "never") },
  { title: "Source", sort: (row) => row.by_hand, cell: (row) => (row.by_hand ? "auth.ban_file" : "API") },
  may("operator") && { title: "", num: true, cell: (row) => !row.by_hand && html`<button class="small" onClick=${() => remove(row)}>Remove</button>` },
].filter(Boolean);
