import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'chai';
import fc from 'fast-check';
import { isSupervisorError, presentable, resolveConfig, settings } from '../../supervisors/index.js';
import { edits } from '../../supervisors/nearest.js';

describe('Configuration', () => {
  let cwd: string;
  beforeEach(async () => {
    cwd = await mkdtemp(join(tmpdir(), 'dynact-config-'));
  });
  afterEach(() => rm(cwd, { recursive: true, force: true }));

  const resolve = (env: Record<string, string> = {}, flags: Record<string, unknown> = {}, file?: string) =>
    resolveConfig({ cwd, env, flags, file });
  const file = (name: string, text: string) => writeFile(join(cwd, name), text);

  async function refusal(attempt: Promise<unknown>): Promise<{ code: string; message: string }> {
    try {
      await attempt;
    } catch (error) {
      if (isSupervisorError(error)) return error;
      throw error;
    }
    throw new Error('it was accepted');
  }

  it('takes a flag over the environment, the environment over the file, and the file over the default', async () => {
    const sources: [Record<string, string>, Record<string, unknown>, number, string][] = [
      [{ DYNACT_HTTP_PORT: '9002' }, { 'http.port': '9003' }, 9003, '--port'],
      [{ DYNACT_HTTP_PORT: '9002' }, {}, 9002, 'DYNACT_HTTP_PORT'],
      [{}, {}, 9001, join(cwd, 'dynact.config.json')],
    ];
    await file('dynact.config.json', '{"http": {"port": 9001}}');
    for (const [env, flags, port, origin] of sources) {
      const { config, origins } = await resolve(env, flags);
      expect(config.http.port).to.equal(port);
      expect(origins['http.port']).to.equal(origin);
    }
    await rm(join(cwd, 'dynact.config.json'));
    const { config, origins } = await resolve();
    expect([config.http.port, origins['http.port']]).to.deep.equal([8000, 'default']);
  });

  it('reads YAML as it reads JSON, and refuses to choose between two files', async () => {
    await file('dynact.config.yaml', 'topology:\n  prefill: 2\nengine:\n  kvCacheBytes: 64MiB\n');
    const { config } = await resolve();
    expect(config.topology.prefill).to.equal(2);
    expect(config.engine.kvCacheBytes).to.equal(64 * 1024 * 1024);
    await file('dynact.config.json', '{}');
    expect((await refusal(resolve())).code).to.equal('SUP_CONFIG_FILE');
  });

  it('names the nearest key when a key is wrong, wherever it was given', async () => {
    await file('dynact.config.json', '{"http": {"prot": 9001}}');
    expect((await refusal(resolve())).message)
      .to.contain('http.prot')
      .and.contain('did you mean http.port?');
    await file('dynact.config.json', '{"port": 9001}');
    expect((await refusal(resolve())).message).to.contain('did you mean http.port?');
    await file('dynact.config.json', '{"routng": {}}');
    expect((await refusal(resolve())).message).to.contain('did you mean routing?');
    await rm(join(cwd, 'dynact.config.json'));
    const wrong = await refusal(resolve({ DYNACT_HTTP_PROT: '1' }));
    expect(wrong.code).to.equal('SUP_CONFIG_KEY');
    expect(wrong.message).to.contain('did you mean DYNACT_HTTP_PORT?');
  });

  it('leaves environment names alone that belong to others', async () => {
    const { config } = await resolve({
      DYNACT_PORT_8000_TCP_ADDR: '10.0.0.1',
      DYNACT_CACHE: '/c',
      DYNACT_HTTP_PORT: '',
    });
    expect(config.http.port).to.equal(8000);
  });

  it('names key, value and origin when a value is outside its range or type', async () => {
    const cases: [Record<string, unknown>, string][] = [
      [{ 'http.port': '65536' }, 'http.port = "65536" (--port)'],
      [{ 'http.port': '80a' }, 'http.port'],
      [{ 'topology.prefill': '-1' }, 'topology.prefill'],
      [{ 'topology.prefill': '1.5' }, 'topology.prefill'],
      [{ 'engine.kind': 'lama' }, 'did you mean llama?'],
      [{ 'nats.url': 'http://x' }, 'nats.url'],
    ];
    for (const [flags, text] of cases) {
      const { code, message } = await refusal(resolve({}, flags));
      expect(code).to.equal('SUP_CONFIG_VALUE');
      expect(message).to.contain(text);
    }
  });

  it('refuses an empty value where one is needed, and names key and origin', async () => {
    for (const setting of settings) {
      const { key, schema } = setting;
      if (schema.default === '') {
        await resolve({}, { [key]: '' });
        continue;
      }
      const { code, message } = await refusal(resolve({}, { [key]: '' }));
      expect(code).to.equal('SUP_CONFIG_VALUE');
      expect(message).to.contain(`${key} = "" (${schema.flag ?? key}): must not be empty`);
    }
  });

  it('refuses pairs that contradict each other, and names both', async () => {
    const pairs: [Record<string, unknown>, string, string][] = [
      [{ 'topology.decode': '0' }, 'topology.prefill', 'topology.decode'],
      [{ 'topology.gateway': '0' }, 'topology.gateway', 'nats.url'],
      [{ 'model.id': 'mock' }, 'model.id', 'engine.kind'],
      [{ 'engine.kind': 'mock', 'model.id': './weights.gguf' }, 'engine.kind', 'model.id'],
      [{ 'engine.kind': 'mock', 'engine.gpu': 'cuda' }, 'engine.gpu', 'engine.kind'],
      [{ 'engine.prefillChunkTokens': 100 }, 'engine.prefillChunkTokens', 'nearest is 128'],
      [{ 'restart.backoffMinMs': 20_000 }, 'restart.backoffMinMs', 'restart.backoffMaxMs'],
      [{ 'deadlines.acceptMs': 70_000 }, 'deadlines.acceptMs', 'deadlines.firstTokenMs'],
      [{ 'nats.user': 'me' }, 'nats.user', 'nats.password'],
      [{ 'routing.classes': '[{"name":"a"},{"name":"a"}]' }, 'routing.classes', 'a, a'],
    ];
    for (const [flags, ...names] of pairs) {
      const { code, message } = await refusal(resolve({}, flags));
      expect(code).to.equal('SUP_CONFIG_PAIR');
      for (const name of names) expect(message).to.contain(name);
    }
  });

  it('reads policy classes as a list, from a file or as JSON, and refuses one that has no such field', async () => {
    const { config } = await resolve({ DYNACT_ROUTING_CLASSES: '[{"name":"batch","quantum":2,"family":"b"}]' });
    expect(config.routing.classes).to.deep.equal([{ name: 'batch', quantum: 2, family: 'b' }]);
    for (const wrong of ['[{"name":"batch","share":2}]', '[{"quantum":2}]', '{}', '[{']) {
      const { code, message } = await refusal(resolve({ DYNACT_ROUTING_CLASSES: wrong }));
      expect([code, message.includes('routing.classes')]).to.deep.equal(['SUP_CONFIG_VALUE', true]);
    }
  });

  it('keeps the meaning of names that Dynamo’s users know, units included', async () => {
    const { config, origins } = await resolve({
      DYN_HTTP_PORT: '9100',
      DYN_NAMESPACE: 'blue',
      DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS: '7',
      DYN_HTTP_BODY_LIMIT_MB: '16',
    });
    expect(config.http.port).to.equal(9100);
    expect(config.node.namespace).to.equal('blue');
    expect(config.node.drainMs).to.equal(7000);
    expect(config.http.bodyBytes).to.equal(16 * 1024 * 1024);
    expect(origins['http.port']).to.equal('DYN_HTTP_PORT');
  });

  it('lets the mock engine choose its own model id and sizes, unless they are given', async () => {
    expect((await resolve({}, { 'engine.kind': 'mock' })).config.model.id).to.equal('mock');
    const { config, origins } = await resolve({}, { 'engine.kind': 'mock', 'model.id': 'pretend', 'engine.slots': 4 });
    expect([config.model.id, config.engine.slots]).to.deep.equal(['pretend', 4]);
    expect(origins['engine.prefillSlots']).to.contain('mock');
  });

  it('starts relative paths at the folder of whatever named them', async () => {
    await file('other.json', '{"node": {"stateDir": "state"}}');
    expect((await resolve({}, {}, 'other.json')).config.node.stateDir).to.equal(join(cwd, 'state'));
    expect((await resolve({}, { 'node.stateDir': 'here' })).config.node.stateDir).to.equal(join(cwd, 'here'));
  });

  it('cannot be changed once resolved', async () => {
    const { config } = await resolve();
    expect(() => {
      (config.http as { port: number }).port = 1;
    }).to.throw(TypeError);
  });

  it('shows no secret', () => {
    const by = (key: string) => settings.find((setting) => setting.key === key) as (typeof settings)[number];
    expect(presentable(by('nats.password'), 'hunter2')).to.equal('***');
    expect(presentable(by('nats.url'), 'nats://me:hunter2@broker:4222')).to.equal('nats://***@broker:4222');
  });

  it('has a unique environment name and a reason in words for every setting', () => {
    const names = settings.flatMap(({ env, schema }) => [env, ...(schema.alias ?? []).map(({ name }) => name)]);
    expect(new Set(names).size).to.equal(names.length);
    for (const { schema } of settings) expect(schema.description.length).to.be.greaterThan(10);
  });

  it('measures edits as a distance: zero only for equals, symmetric, at most the longer length', () => {
    fc.assert(
      fc.property(fc.string({ maxLength: 12 }), fc.string({ maxLength: 12 }), (a, b) => {
        expect(edits(a, b)).to.equal(edits(b, a));
        expect(edits(a, b) === 0).to.equal(a === b);
        expect(edits(a, b)).to.be.at.most(Math.max(a.length, b.length));
      }),
    );
    expect(edits('prot', 'port')).to.equal(1);
  });
});
