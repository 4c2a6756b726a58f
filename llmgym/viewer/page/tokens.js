// An episode token by token, as it was trained: sampled tokens are trained (mask 1), context tokens are not.

let shade = "mask";

// How strongly a token is coloured, from 0 to 1, and in which colour.
const SHADES = {
  mask: { about: "Coloured tokens were sampled by the policy. Only they count in the loss.", of: () => ["sampled", 0.35] },
  "log-probability": {
    about: "The stronger the colour, the less likely the sampled token was under the policy: no colour at p = 1, full at p = 0.05 or less.",
    of: (token) => ["surprise", Math.min(1, -token.logprob / 3)],
  },
  advantage: {
    about: "Green tokens were made more likely and red ones less, in proportion to the episode's advantage (full colour at 2 or more).",
    of: (token) => [token.advantage > 0 ? "gain" : "loss", Math.min(1, Math.abs(token.advantage) / 2)],
  },
};

function tokenText(id) {
  if (!index.vocabulary.size) return id + " ";
  const text = index.vocabulary.has(id) ? index.vocabulary.get(id) : `⟨${id}⟩`;
  return text.replace(/\n/g, "↵\n") || "⟨⟩";
}

function tokenView(episode, turns) {
  const advantage = value("advantage", episode);
  const trained = value("trained", episode);
  const spans = [];
  const view = el("div", "tokens");
  turns.forEach((turn, place) => {
    if (!turn) return;
    const facts = [`turn ${place + 1}`, `${turn.context_ids.length} context`, `${turn.completion_ids.length} sampled`, `ended by ${turn.finish_reason}`, `sampled after ${turn.policy_version} weight updates`];
    const starts = place > 0 && !turn.extends ? el("p", "notice", "The history was rewritten: a new training row starts here.") : "";
    const text = el("div", "token-text");
    for (const id of turn.context_ids) text.append(tokenSpan(spans, { id, mask: 0 }));
    turn.completion_ids.forEach((id, at) => text.append(tokenSpan(spans, { id, mask: 1, logprob: turn.logprobs[at], advantage })));
    view.append(starts, el("div", "turn", el("div", "facts", facts.map((fact) => el("span", "", fact))), text));
  });
  view.addEventListener("mousemove", (event) => {
    const found = spans[event.target.dataset ? event.target.dataset.token : undefined];
    if (found) showTip(event, tokenFacts(found.token));
    else hideTip();
  });
  view.addEventListener("mouseleave", hideTip);
  const about = el("p", "about");
  const choices = Object.keys(SHADES).map((name) => {
    const choice = button(name, "", () => paint(name));
    choice.disabled = name === "advantage" && typeof advantage !== "number";
    return choice;
  });
  function paint(name) {
    shade = name;
    for (const choice of choices) choice.setAttribute("aria-pressed", String(choice.textContent === name));
    about.textContent = SHADES[name].about + (trained === false ? " This episode was not trained: all rewards of its group are equal." : "");
    for (const { span, token } of spans) {
      if (!token.mask) continue;
      const [style, strength] = SHADES[name].of(token);
      span.className = "token " + style;
      span.style.setProperty("--strength", Math.round(strength * 100) + "%");
    }
  }
  paint(typeof advantage === "number" || shade !== "advantage" ? shade : "mask");
  return el("div", "", el("div", "shades", "colour by", choices), about, view);
}

function tokenSpan(spans, token) {
  const span = el("span", token.mask ? "token" : "token context", tokenText(token.id));
  span.dataset.token = spans.length;
  spans.push({ span, token });
  return span;
}

function tokenFacts(token) {
  const facts = [`id ${token.id}`, `mask ${token.mask}`];
  if (index.vocabulary.has(token.id)) facts.unshift(JSON.stringify(index.vocabulary.get(token.id)));
  if (token.mask && typeof token.logprob === "number") facts.push(`log-probability ${token.logprob.toFixed(4)} (p = ${number(Math.exp(token.logprob), 4)})`);
  if (token.mask && typeof token.advantage === "number") facts.push(`advantage ${number(token.advantage)}`);
  return facts.join(" · ");
}
