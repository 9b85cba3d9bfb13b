// Access rules in force: the files as the broker has read them.

import { Empty, Fault, Page, Section, html, useGet } from "../ui.js";

const SOURCES = { access_file: "Access file", policy_file: "Policy file" };

export function Rules() {
  const { data, problem } = useGet("/access/files");
  const service = useGet("/settings").data?.items.find(({ key }) => key === "authorization.url")?.value;
  const hasService = service && service !== '""';
  return html`
    <${Page} title="Access rules">
      <${Fault} problem=${problem} />
      ${hasService && html`<p>What no rule decides, the service at <span class="mono">${service}</span> decides.</p>`}
      ${data && data.items.length === 0 && !hasService && html`
        <${Empty}>There are no access rules: all clients may publish and subscribe to everything.<//>`}
      ${data?.items.map((file) => html`
        <${Section} key=${`${file.namespace} ${file.source}`} note=${file.path}
          title=${`${SOURCES[file.source] ?? file.source}${file.namespace === "default" ? "" : ` of ${file.namespace}`}`}>
          <${Text} text=${file.text} />
          ${file.is_cut && html`<p class="dim">The file is longer.</p>`}
        <//>`)}
    <//>`;
}

function Text({ text }) {
  const lines = text.replace(/\n$/, "").split("\n");
  return html`<ol class="lines mono" tabindex="0">${lines.map((line, index) => html`<li key=${index}>${line || " "}</li>`)}</ol>`;
}
