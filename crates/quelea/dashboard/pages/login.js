// Log-in by a user of the API, by the token, or by a link that the broker has printed.

import { useEffect, useState } from "../vendor/hooks.js";
import { logIn, state } from "../api.js";
import { Fault, Field, html } from "../ui.js";

// The secret of a link is taken out of the address at once: it must not be kept or passed on.
function takeCode() {
  const code = location.hash.match(/^#login=([0-9a-f]+)$/)?.[1];
  if (code) history.replaceState(null, "", `${location.pathname}#/overview`);
  return code;
}
const code = takeCode();
let isUsed = false;

export function LogIn() {
  const [by, setBy] = useState("token");
  const [values, setValues] = useState({ name: "", password: "", token: "" });
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const run = async (secret) => {
    setBusy(true);
    setProblem(null);
    try {
      await logIn(secret);
    } catch (error) {
      setProblem(error);
      setBusy(false);
    }
  };
  useEffect(() => {
    document.title = "Log in · quelea";
    if (code && !isUsed) {
      isUsed = true;
      run({ token: code });
    }
  }, []);
  const input = (name, type) => html`
    <input type=${type} value=${values[name]} required name=${name} autocapitalize="off" spellcheck=${false}
      autocomplete=${{ name: "username", password: "current-password", token: "off" }[name]}
      onInput=${(event) => setValues({ ...values, [name]: event.target.value })} />`;
  const tab = (name, text) => html`
    <button type="button" aria-pressed=${by === name} onClick=${() => setBy(name)}>${text}</button>`;
  return html`
    <main class="login">
      <form onSubmit=${(event) => {
        event.preventDefault();
        run(by === "token" ? { token: values.token.trim() } : { name: values.name, password: values.password });
      }}>
        <h1>quelea</h1>
        ${state.reason && html`<p class="dim">${state.reason}</p>`}
        <div class="tabs">${tab("token", "Token")}${tab("user", "User")}</div>
        ${by === "token"
          ? html`<${Field} label="Token" hint="The first line of api.token in the data directory.">${input("token", "password")}<//>`
          : html`<${Field} label="Username">${input("name", "text")}<//>
              <${Field} label="Password">${input("password", "password")}<//>`}
        <${Fault} problem=${problem && (problem.status === 401 ? { detail: wrong(by) } : problem)} />
        <button class="primary" disabled=${busy}>Log in</button>
      </form>
    </main>`;
}

const wrong = (by) => (by === "token" ? "wrong token, or a link that was used or is too old" : "wrong username or password");
