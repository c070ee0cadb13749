/** What clients and operators may ask of a node's routing, over its real doors. */
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect } from 'chai';
import { endNodes, startNode, type TestNode, until } from './node-kit.js';

const cli = fileURLToPath(new URL('../../bin/dynact.js', import.meta.url));
const run = promisify(execFile);

describe('A node that is asked for something', function () {
  this.timeout(60_000);
  let node: TestNode;
  before(async () => {
    node = await startNode(
      ['--prefill', '0', '--decode', '2', '--gateway', '2', '--session-ttl-ms', '60000', '--tape', 'off'],
      {
        env: { DYNACT_ROUTING_CLASSES: '[{"name":"default"},{"name":"batch","family":"batch","quantum":2}]' },
      },
    );
  });
  after(endNodes);

  async function chat(more: Record<string, unknown> = {}, headers: Record<string, string> = {}) {
    const response = await fetch(`${node.url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...headers },
      body: JSON.stringify({ model: 'mock', messages: [{ role: 'user', content: 'hi' }], max_tokens: 2, ...more }),
    });
    return { status: response.status, body: JSON.parse(await response.text()) };
  }
  const config = (...args: string[]) =>
    run(process.execPath, [cli, 'config', ...args, '--state-dir', node.stateDir]).then(
      ({ stdout }) => ({ code: 0, stdout, stderr: '' }),
      ({ code, stdout, stderr }) => ({ code, stdout, stderr }),
    );
  const thresholds = async () => {
    const { thresholds: all } = (await (await fetch(`${node.url}/busy_threshold`)).json()) as { thresholds: unknown[] };
    return all[0];
  };

  it('serves on the worker that a request names, says where it would, and knows who is not there', async () => {
    const nvext = { annotations: ['query_instance_id'] };
    for (const name of ['decode-0', 'decode-1']) {
      const { body } = await chat({ nvext: { ...nvext, backend_instance_id: name } });
      expect(body.nvext.worker_id.decode_worker_id).to.match(new RegExp(`^${name}-`));
      expect((await chat({ nvext: { decode_worker_id: name } })).body.usage.completion_tokens).to.equal(2);
    }
    const { status, body } = await chat({}, { 'x-dynamo-worker-instance-id': 'decode-7' });
    expect([status, body.error.code]).to.deep.equal([404, 'no_such_worker']);
    expect((await chat({ prompt_cache_key: 's' }, { 'x-dynamo-meta-policy-class': 'batch' })).status).to.equal(200);
  });

  it('takes new thresholds while it runs, at every gateway, and refuses those that are out of range', async () => {
    const set = await config('set', 'routing.activePrefillTokensThreshold', '9000');
    expect(set).to.include({ code: 0, stdout: 'routing.activePrefillTokensThreshold  9000\n' });
    const shown = { model: 'mock', active_decode_blocks_threshold: null, active_prefill_tokens_threshold_frac: null };
    // Connections go to either gateway.
    for (let look = 0; look < 4; look++) {
      await until('both gateways to know', async () => {
        const now = (await thresholds()) as { active_prefill_tokens_threshold: number | null };
        return now.active_prefill_tokens_threshold === 9_000;
      });
    }
    const post = await fetch(`${node.url}/busy_threshold`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model: 'mock', active_prefill_tokens_threshold: null }),
    });
    expect(await post.json()).to.deep.equal({ ...shown, active_prefill_tokens_threshold: null });
    await until('it to be off', async () => (await config('get')).stdout.includes('activePrefillTokensThreshold  0\n'));
    expect((await config('unset', 'routing.activePrefillTokensThreshold')).code).to.equal(0);

    for (const [key, value, why] of [
      ['routing.activeDecodeBlocksThreshold', '1.5', 'must be'],
      ['routing.activeDecodeBlocksThreshhold', '0.5', 'did you mean routing.activeDecodeBlocksThreshold'],
      ['http.port', '1', 'cannot be changed while it runs'],
    ] as const) {
      const refused = await config('set', key, value);
      expect(refused.code).to.equal(1);
      expect(refused.stderr).to.contain(why);
    }
  });

  it('has metrics of its queue, its sessions and its refusals', async () => {
    await until('a gateway that has seen it all', async () => {
      const text = await (await fetch(`${node.url}/metrics`)).text();
      // Two gateways: which of them is asked is chance, which has served what, too.
      const has = (line: string) => text.includes(`${line}\n`);
      return (
        has('dynact_router_class_requests_queued{class="batch"} 0') &&
        has('dynact_router_sessions 1') === has('dynact_router_session_requests_total{outcome="new"} 1') &&
        has('dynact_router_refused_total{reason="no_such_worker"} 1')
      );
    });
  });
});
