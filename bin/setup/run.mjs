// The steps of set-up, in order. Each says whether its work is done already; a second run only asks.
import { parseArgs } from 'node:util';
import { addon } from './addon.mjs';
import { bundle } from './bundle.mjs';
import { exclusively, openCache } from './cache.mjs';
import { dependencies } from './dependencies.mjs';
import { headers } from './headers.mjs';
import { llamaServer } from './llama-server.mjs';
import { model } from './model.mjs';
import { natsServer } from './nats-server.mjs';
import { createReport, SetupError } from './report.mjs';
import { ensureTools } from './tools.mjs';
import { typescript } from './typescript.mjs';
import { weights } from './weights.mjs';

const STEPS = { dependencies, headers, addon, typescript, bundle, nats: natsServer, model, weights };
/** Only when named. */
const EXTRA = { 'llama-server': llamaServer };
const BY_NAME = { ...STEPS, ...EXTRA };

const HELP = `Prepares this clone; does only what is not done yet.
  --only a,b   these steps and what they build on: ${Object.keys(BY_NAME).join(', ')}
  --check      do nothing, only say what is not done; exit code 1 if there is anything
  --thorough   hash cached downloads again
`;

/** @returns the exit code */
export async function setUp(args) {
  const report = createReport();
  try {
    const { values } = parseArgs({
      args,
      options: {
        only: { type: 'string' },
        check: { type: 'boolean' },
        thorough: { type: 'boolean' },
        help: { type: 'boolean', short: 'h' },
      },
    });
    if (values.help) {
      process.stdout.write(HELP);
      return 0;
    }
    const ctx = { cache: openCache(), report, thorough: values.thorough ?? false };
    const steps = chosen(values.only);
    const todo = await stale(steps, ctx);
    if (values.check) {
      for (const step of todo) report.line(`not done: ${step.name}`);
      return todo.length > 0 ? 1 : 0;
    }
    if (todo.length > 0) {
      const waiting = () => report.line('set-up: another set-up is at work, waiting for it');
      await exclusively(ctx.cache.folder, waiting, () => work(steps, ctx));
    }
    return 0;
  } catch (error) {
    const expected = error instanceof SetupError || error.code?.startsWith?.('ERR_PARSE_ARGS');
    report.line(`set-up failed: ${expected ? error.message : error.stack}`);
    return 1;
  }
}

function chosen(only) {
  if (only === undefined) return Object.values(STEPS);
  const wanted = new Set();
  const want = (name) => {
    const step = BY_NAME[name];
    if (!step) throw new SetupError(`there is no step "${name}": ${Object.keys(BY_NAME).join(', ')}`);
    wanted.add(step);
    step.after?.forEach(want);
  };
  only.split(',').forEach(want);
  return Object.values(BY_NAME).filter((step) => wanted.has(step));
}

async function stale(steps, ctx) {
  const done = await Promise.all(steps.map((step) => step.upToDate(ctx)));
  return steps.filter((_, index) => !done[index]);
}

async function work(steps, ctx) {
  ctx.report.line(`set-up (cache: ${ctx.cache.folder})`);
  // All tools first: nobody waits for a download to learn that the compiler is missing.
  const needs = (await stale(steps, ctx)).flatMap((step) => step.needs);
  await ensureTools([...new Set(needs)], ctx.report);
  for (const step of steps) {
    // Asked again: a step before it, or the set-up that was waited for, may have changed what it depends on.
    if (await step.upToDate(ctx)) continue;
    await ctx.report.step(step.name, (progress) => step.run(ctx, progress));
  }
}
