/** What clients may ask of routing, in Dynamo's words, and what operators may set. */
import { expect } from 'chai';
import type { BusyThresholdValues } from '../../gateway/index.js';
import { chatBody, events, openRig, post, type Rig, type Script, send } from './scripted-frontend.js';

const path = '/v1/chat/completions';

describe('Wishes of a request', () => {
  let rig: Rig;
  before(async () => {
    rig = await openRig();
  });
  after(() => rig.close());
  const wished = async (more: Record<string, unknown>, headers: Record<string, string> = {}) => {
    const { status } = await post(rig, path, chatBody(more), headers);
    expect(status).to.equal(200);
    const { wishes, cacheSalt } = rig.calls.at(-1)?.prepared ?? {};
    return { wishes, cacheSalt };
  };

  it('are read from nvext', async () => {
    const nvext = {
      backend_instance_id: 'decode-0',
      prefill_worker_id: 'prefill-1-abc',
      allowed_worker_ids: ['decode-0', 'prefill-1'],
      dp_rank: 0,
      agent_hints: { priority: -3, strict_priority: 2, osl: 100, latency_sensitivity: 0.5 },
      routing_constraints: { required_taints: ['zone=a'], preferred_taints: { fast: 1.5 } },
      router_config_override: { router_temperature: 0.5, track_prefill_tokens: false, router_mode: 'random' },
      cache_salt: 'mine',
    };
    const { wishes, cacheSalt } = await wished({ nvext, prompt_cache_key: 'k' });
    expect(wishes).to.deep.equal({
      session: 'k',
      pin: { worker: 'decode-0', prefill: 'prefill-1-abc', rank: 0 },
      allowed: new Set(['decode-0', 'prefill-1']),
      requiredTaints: ['zone=a'],
      preferredTaints: { fast: 1.5 },
      priority: -3,
      strictPriority: 2,
      mode: 'random',
      cost: { routerTemperature: 0.5, trackPrefillTokens: false },
    });
    expect(cacheSalt).to.equal('mine');
    expect((await wished({ nvext: null })).wishes).to.equal(undefined);
    expect((await wished({ nvext: { agent_hints: null, backend_instance_id: null } })).wishes).to.equal(undefined);
  });

  it('are read from headers, which count more than the body', async () => {
    const headers = {
      'x-dynamo-worker-instance-id': 'decode-1',
      'x-dynamo-request-priority': '-7',
      'x-dynamo-request-strict-priority': '4',
      'x-dynamo-meta-policy-class': 'batch',
      'x-session-id': 'opencode/1',
      'x-tenant-id': 'acme',
    };
    const nvext = {
      backend_instance_id: 'decode-0',
      decode_worker_id: 'decode-0',
      prefill_worker_id: 'p',
      agent_hints: { priority: 1 },
    };
    const { wishes, cacheSalt } = await wished({ nvext, prompt_cache_key: 'k' }, headers);
    expect(wishes).to.deep.equal({
      session: 'opencode/1',
      class: 'batch',
      priority: -7,
      strictPriority: 4,
      pin: { worker: 'decode-1', prefill: 'p' },
    });
    expect(cacheSalt).to.equal('acme');
    const salted = await wished({ cache_salt: 's' }, { 'x-tenant-id': 'acme' });
    expect(salted.cacheSalt, 'a salt keeps requests of one tenant apart, too').not.to.be.oneOf(['acme', 's']);
  });

  const bad: readonly (readonly [unknown, string])[] = [
    [5, 'nvext'],
    [{ backend_instance_id: 7 }, 'nvext.backend_instance_id'],
    [{ decode_worker_id: 'a.b' }, 'nvext.decode_worker_id'],
    [{ allowed_worker_ids: [] }, 'nvext.allowed_worker_ids'],
    [{ dp_rank: -1 }, 'nvext.dp_rank'],
    [{ agent_hints: 'now' }, 'nvext.agent_hints'],
    [{ agent_hints: { priority: 1.5 } }, 'nvext.agent_hints.priority'],
    [{ agent_hints: { strict_priority: -1 } }, 'nvext.agent_hints.strict_priority'],
    [{ routing_constraints: { required_taints: [''] } }, 'nvext.routing_constraints.required_taints'],
    [{ router_config_override: { router_temperature: -1 } }, 'nvext.router_config_override.router_temperature'],
    [{ router_config_override: { router_mode: 'kvv' } }, 'nvext.router_config_override.router_mode'],
    [{ annotations: ['token_ids'] }, 'nvext.annotations'],
    [{ token_data: [1] }, 'nvext.token_data'],
    [{ agent_hints: { hurry: 1 } }, 'nvext.agent_hints.hurry'],
  ];
  for (const [nvext, param] of bad) {
    it(`are refused when they are wrong or would be left out: ${JSON.stringify(nvext)}`, async () => {
      const { status, body } = await post(rig, path, chatBody({ nvext }));
      expect(status).to.equal(400);
      expect(body.error).to.include({ param, type: 'invalid_request_error' });
    });
  }

  const badHeaders: Readonly<Record<string, string>> = {
    'x-dynamo-worker-instance-id': 'a b',
    'x-dynamo-dp-rank': '-1',
    'x-dynamo-request-priority': 'high',
    'x-dynamo-request-strict-priority': '-1',
    'x-session-id': 'x'.repeat(257),
  };
  for (const [header, value] of Object.entries(badHeaders)) {
    it(`are refused when a header is wrong: ${header}`, async () => {
      const { status, body } = await post(rig, path, chatBody(), { [header]: value });
      expect(status).to.equal(400);
      expect(body.error).to.include({ param: header });
    });
  }
});

describe('A dry run', () => {
  const script: Script = ({ prepared, stream }) => {
    stream.begin('id', { ...prepared, n: 0 });
    const usage = { promptTokens: prepared.prompt.length, completionTokens: 0, cachedTokens: 0 };
    stream.end(usage, { decode: 'd', prefill: 'p', prompt: prepared.prompt });
  };
  let rig: Rig;
  before(async () => {
    rig = await openRig({ script });
  });
  after(() => rig.close());
  const nvext = { annotations: ['query_instance_id:'] };

  it('is answered with the workers and the prompt as tokens, streamed or not', async () => {
    const whole = await post(rig, path, chatBody({ nvext }));
    const prompt = [...(rig.calls.at(-1)?.prepared.prompt ?? [])];
    expect(rig.calls.at(-1)?.prepared.dryRun).to.equal(true);
    const said = { worker_id: { prefill_worker_id: 'p', decode_worker_id: 'd' }, token_ids: prompt };
    expect(whole.body).to.deep.include({ choices: [], nvext: said });
    const streamed = await post(rig, path, chatBody({ nvext, stream: true }));
    const chunks = events(streamed.text);
    expect(chunks).to.have.length(2);
    expect(chunks[0]).to.deep.include({ choices: [], nvext: said });
    expect(chunks[1]).to.equal('[DONE]');
  });

  it('takes one prompt', async () => {
    const { status, body } = await post(rig, '/v1/completions', { model: 'mock', prompt: ['a', 'b'], nvext });
    expect([status, body.error.param]).to.deep.equal([400, 'nvext.annotations']);
  });
});

describe('GET and POST /busy_threshold', () => {
  let values: BusyThresholdValues = { decodeBlocks: undefined, prefillTokens: undefined, prefillTokensFrac: undefined };
  let broken = false;
  let rig: Rig;
  before(async () => {
    const busyThresholds = {
      get: () => values,
      async set(next: Partial<BusyThresholdValues>) {
        if (broken) throw new Error('away');
        values = { ...values, ...next };
      },
    };
    rig = await openRig({ busyThresholds });
  });
  after(() => rig.close());
  const off = {
    active_decode_blocks_threshold: null,
    active_prefill_tokens_threshold: null,
    active_prefill_tokens_threshold_frac: null,
  };

  it('show what holds and change what is named, null being off', async () => {
    expect((await send(rig, '/busy_threshold')).body).to.deep.equal({ thresholds: [{ model: 'mock', ...off }] });
    const set = { active_decode_blocks_threshold: 0.9, active_prefill_tokens_threshold: 10_000 };
    expect((await post(rig, '/busy_threshold', { model: 'mock', ...set })).body).to.deep.equal({
      model: 'mock',
      ...off,
      ...set,
    });
    const next = await post(rig, '/busy_threshold', { model: 'mock', active_decode_blocks_threshold: null });
    expect(next.body).to.deep.include({
      active_decode_blocks_threshold: null,
      active_prefill_tokens_threshold: 10_000,
    });
    expect(values).to.deep.equal({ decodeBlocks: undefined, prefillTokens: 10_000, prefillTokensFrac: undefined });
    expect((await post(rig, '/busy_threshold', { model: 'mock' })).body).to.deep.equal(next.body);
  });

  it('refuse what is out of range, naming it, and say when nothing can be stored', async () => {
    const cases = [
      [{ active_decode_blocks_threshold: 1.1 }, 400, 'active_decode_blocks_threshold'],
      [{ active_prefill_tokens_threshold: 2.5 }, 400, 'active_prefill_tokens_threshold'],
      [{ active_prefill_tokens_threshold_frac: -1 }, 400, 'active_prefill_tokens_threshold_frac'],
      [{ model: 'other' }, 404, 'model'],
      [{ model: 3 }, 400, 'model'],
    ] as const;
    for (const [more, wanted, param] of cases) {
      const { status, body } = await post(rig, '/busy_threshold', { model: 'mock', ...more });
      expect([status, body.error.param]).to.deep.equal([wanted, param]);
    }
    broken = true;
    const { status, headers } = await post(rig, '/busy_threshold', {
      model: 'mock',
      active_decode_blocks_threshold: 0.5,
    });
    expect([status, headers['retry-after']]).to.deep.equal([503, '1']);
  });
});
