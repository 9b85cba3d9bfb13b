// Users of the password file of MQTT clients.

import { useState } from "../vendor/hooks.js";
import { del, put } from "../api.js";
import { List } from "../list.js";
import { Page, act, html } from "../ui.js";

export function Users() {
  const [version, setVersion] = useState(0);
  const again = () => setVersion((count) => count + 1);
  const set = async (username) => {
    let name = username;
    const is = await act({
      title: username ? `Change the password of ${username}?` : "Add a user",
      text: "The password file is written, and the change is in force at once.",
      label: username ? "Change" : "Add",
      fields: [
        !username && { name: "name", title: "Username", required: true },
        { name: "password", title: "Password", type: "password", required: true },
        { name: "scram", title: "SCRAM-SHA-256", options: [["", "no"], ["yes", "also store credentials"]] },
      ].filter(Boolean),
    }, (values) => {
      name = username ?? values.name;
      return put("/user", { password: values.password, scram: values.scram === "yes" }, { username: name });
    }, () => `The password of ${name} was set.`);
    if (is) again();
  };
  const remove = async (username) => {
    const is = await act({
      title: `Delete the user ${username}?`, label: "Delete", danger: true,
      text: "New connections of the user are refused. Open connections stay.",
    }, () => del("/user", { username }), `The user ${username} was deleted.`);
    if (is) again();
  };
  const columns = [
    { title: "Username", wide: true, sort: (row) => row.username, cell: (row) => html`<span class="mono">${row.username}</span>` },
    { title: "SCRAM-SHA-256", sort: (row) => row.scram, cell: (row) => (row.scram ? "yes" : html`<span class="dim">no</span>`) },
    { title: "", num: true, cell: (row) => html`
      <button class="small" onClick=${() => set(row.username)}>Change password</button>
      <button class="small danger" onClick=${() => remove(row.username)}>Delete</button>` },
  ];
  return html`
    <${Page} title="Users" note="of auth.password_file" actions=${html`<button onClick=${() => set()}>Add a user</button>`}>
      <${List} path="/users" label="Users" version=${version} columns=${columns} keyOf=${(row) => row.username}
        empty="The password file has no user." />
    <//>`;
}
