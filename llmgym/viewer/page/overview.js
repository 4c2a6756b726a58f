// The overview: figures, stop reasons, curves, settings.

// Drawn first, in this order; every other metric follows.
const FIRST_CURVES = ["reward", "success", "groups/with_success", "frac_reward_zero_std", "turns_per_episode", "completions/mean_length",
  "tools/call_frequency", "tools/failure_frequency", "entropy", "loss", "grad_norm", "step_time"];

function tile(name, text, note) {
  return el("div", "tile", el("span", "name", name), el("b", "", text), note ? el("span", "note", note) : null);
}

let minSuccessReward = null;

function successReward() {
  if (minSuccessReward === null) minSuccessReward = findSuccessReward();
  return minSuccessReward;
}

function findSuccessReward() {
  if (index.report && typeof index.report.success_reward === "number") return index.report.success_reward;
  const set = /^success_reward: *([-+.\deE]+)$/m.exec(index.settings);
  return set ? Number(set[1]) : 1;
}

function tiles() {
  const rewards = col.reward.filter((reward, episode) => typeof reward === "number" && stop(episode) !== "error");
  const enough = successReward();
  const shown = [
    tile("episodes", number(count), plural(index.tasks.length, "task")),
    tile("mean reward", number(mean(rewards)), "without failed episodes"),
    tile("success", number((100 * rewards.filter((reward) => reward >= enough).length) / (rewards.length || 1), 1) + " %", `a reward of ${number(enough)} or more`),
    tile("turns", number(mean(col.turns), 2), "per episode"),
    tile("tool calls", number(mean(col.tool_calls), 2), `per episode, ${number(mean(col.tool_errors), 2)} of them errors`),
    tile("sampled tokens", number(col.sampled_tokens.reduce((a, b) => a + b, 0)), `${number(mean(col.sampled_tokens), 1)} per episode`),
    tile("time", seconds(mean(col.policy_s)), `policy, per episode; environment ${seconds(mean(col.env_s))}`),
  ];
  for (const name of ["val/success", "val/reward"]) {
    const points = index.metrics.filter((line) => typeof line[name] === "number");
    if (!points.length) continue;
    const [first, last] = [points[0], points[points.length - 1]];
    shown.push(tile(name.replace("val/", "validation "), number(last[name]), `at step ${last.step}; ${number(first[name])} at step ${first.step}`));
  }
  return el("div", "tiles", shown);
}

function stopReasons() {
  const counts = index.stops.map(() => 0);
  for (const reason of col.stop) counts[reason] += 1;
  const rows = index.stops.map((name, reason) => {
    if (!counts[reason]) return null;
    const bar = el("span", "bar stop-" + name);
    bar.style.width = (100 * counts[reason]) / count + "%";
    const row = button("", "stop-row", () => browse({ stop: name }));
    row.append(el("span", "name", name), el("span", "track", bar), el("span", "figure", `${number(counts[reason])} (${number((100 * counts[reason]) / count, 1)} %)`));
    return row;
  });
  return el("section", "panel", el("h2", "", "Why episodes stopped"), rows);
}

function stopCharts() {
  if (!col.step) return [];
  return [["training", true], ["validation", false]].map(([name, training]) => {
    const byStep = new Map();
    for (let episode = 0; episode < count; episode++) {
      if (isTraining(episode) !== training || col.step[episode] === null) continue;
      if (!byStep.has(col.step[episode])) byStep.set(col.step[episode], {});
      const counts = byStep.get(col.step[episode]);
      counts[stop(episode)] = (counts[stop(episode)] || 0) + 1;
    }
    const rows = [...byStep].sort((a, b) => a[0] - b[0]);
    return rows.length ? shareChart("stops in " + name, rows, index.stops.map((reason) => [reason, "stop-" + reason])) : null;
  });
}

function curves() {
  const names = new Set(index.metrics.flatMap((line) => Object.keys(line)).filter((name) => name !== "step").map((name) => name.replace(/^val\//, "")));
  const ordered = [...FIRST_CURVES.filter((name) => names.has(name)), ...[...names].filter((name) => !FIRST_CURVES.includes(name)).sort()];
  const points = (name) => index.metrics.filter((line) => typeof line[name] === "number").map((line) => [line.step, line[name]]);
  const charts = new Map();
  for (const name of ordered) {
    const series = [
      { name: "training", style: "c0", points: points(name) },
      { name: "validation", style: "c1", points: points("val/" + name) },
    ].filter((one) => one.points.length);
    charts.set(name, lineChart(name, series));
  }
  const pick = (wanted) => [...charts].filter(([name, chart]) => chart && FIRST_CURVES.includes(name) === wanted).map(([, chart]) => chart);
  return [pick(true), pick(false)];
}

function reportPanels(report) {
  const shown = [];
  for (const warning of report.warnings || []) shown.push(el("p", "notice bad", warning));
  if (report.stopped) shown.push(el("p", "notice bad", "ended early: " + report.stopped));
  if (report.trainable) shown.push(el("p", "notice", report.trainable.advice));
  const panels = [];
  const panel = (title, head, rows) => rows.length && panels.push(el("section", "panel", el("h2", "", title), table(head, rows)));
  const interval = (one) => (one && typeof one.low === "number" ? `${number(one.mean)} [${number(one.low)}, ${number(one.high)}]` : number(one && one.mean));
  panel("Result, with 95 % intervals", ["", ""], [
    ["policy", report.policy], ["mean reward", interval(report.reward)], ["with failed episodes as 0", interval(report.reward_failed_as_0)],
    ["success", interval(report.success)], ["trainable share of tasks", number(report.trainable && report.trainable.share)],
    ["tokens in, out", `${number(report.prompt_tokens)}, ${number(report.completion_tokens)}`], ["cost", number(report.cost, 4)],
  ].filter((row) => row[1] !== ""));
  panel("pass@k: at least one of k succeeds; pass^k: all succeed", ["k", "pass@k", "pass^k", "tasks"],
    (report.passes || []).map((row) => [number(row.k), number(row.at_least_one), number(row.all_of_them), number(row.tasks)]));
  panel("Tools", ["tool", "calls", "errors"], Object.entries(report.tools || {}).map(([name, one]) => [name, number(one.calls), number(one.errors)]));
  panel("Tool errors", ["type", "count"], Object.entries(report.tool_errors || {}).map(([name, times]) => [name, number(times)]));
  panel("Failures", ["stop reason", "count", "details"], (report.failures || []).map((one) => [one.stop_reason, number(one.count), one.detail]));
  panel("Metrics of the environment", ["metric", "mean"], Object.entries(report.metrics || {}).map(([name, one]) => [name, number(one)]));
  return [...shown, el("div", "panels", panels)];
}

function showOverview() {
  const [first, others] = curves();
  const rewards = col.reward.filter((reward) => typeof reward === "number");
  byId("overview").replaceChildren(
    tiles(),
    ...(index.report ? reportPanels(index.report) : []),
    el("div", "panels", stopReasons()),
    el("div", "charts", first.slice(0, 2), stopCharts(), rewards.length ? histogram("rewards of all episodes", rewards) : null, first.slice(2)),
    ...(others.length ? [fold(`${others.length} more metrics`, el("div", "charts", others))] : []),
    ...(index.settings ? [fold("settings", el("pre", "", index.settings))] : []),
  );
}
