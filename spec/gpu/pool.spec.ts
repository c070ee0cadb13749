import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { expect } from 'chai';
import { type KvFetcher, type KvFetchResult, type KvPool, openKvFetcher, openKvPool } from '../../gpu/index.js';
import type { BlockRef, PoolRef } from '../../transport/index.js';

const hash = (n: number): string => n.toString(16).padStart(16, '0');

function exported(pool: KvPool, index: number, fill: number, length = 1000): BlockRef {
  const block = pool.put({ index, tokens: 64, hash: hash(index + 1), bytes: new Uint8Array(length).fill(fill) });
  if (block === undefined) throw new Error('the pool is full');
  return block;
}

const fetched = (fetcher: KvFetcher, pool: PoolRef, blocks: readonly BlockRef[]): Promise<KvFetchResult> =>
  new Promise((resolve) => fetcher.fetch(pool, blocks, resolve));

describe('export pool', () => {
  let pool: KvPool;
  let fetcher: KvFetcher;
  beforeEach(() => {
    pool = openKvPool({ owner: 'p-1', epoch: 1, slotBytes: 1000, slots: 3 });
    fetcher = openKvFetcher();
  });
  afterEach(() => {
    fetcher.close();
    pool.close();
  });

  it('holds as many blocks as it has slots and refuses the next', () => {
    for (let i = 0; i < 3; i += 1) exported(pool, i, i);
    expect(pool.used).to.equal(3);
    expect(pool.put({ index: 3, tokens: 64, hash: hash(9), bytes: new Uint8Array(10) })).to.equal(undefined);
  });

  it('refuses to free a slot twice, or one that never was', () => {
    const block = exported(pool, 0, 1);
    expect(pool.give(block.offset)).to.equal(true);
    expect(pool.give(block.offset)).to.equal(false);
    for (const offset of [-1, 0, block.offset + 1, 1e12, Number.NaN]) expect(pool.give(offset)).to.equal(false);
    expect(pool.used).to.equal(0);
  });

  it('refuses a block that is empty or larger than a slot', () => {
    for (const length of [0, 1001]) {
      expect(pool.put({ index: 0, tokens: 64, hash: hash(1), bytes: new Uint8Array(length) })).to.equal(undefined);
    }
    expect(pool.used).to.equal(0);
  });

  it('throws a clear error for sizes that cannot be', () => {
    expect(() => openKvPool({ owner: 'p', epoch: 1, slotBytes: 0, slots: 1 })).to.throw(/0 bytes/);
    expect(() => openKvPool({ owner: 'p', epoch: -1, slotBytes: 1, slots: 1 })).to.throw(RangeError);
    expect(() => openKvPool({ owner: 'p'.repeat(65), epoch: 1, slotBytes: 1, slots: 1 })).to.throw(/64/);
  });

  it('does nothing after it is closed', () => {
    pool.close();
    expect(pool.put({ index: 0, tokens: 1, hash: hash(1), bytes: new Uint8Array(8) })).to.equal(undefined);
    expect(pool.give(4096)).to.equal(false);
    expect(pool.used).to.equal(0);
  });

  it('yields copies that a later write to the slot does not change', async () => {
    const block = exported(pool, 0, 7);
    const { status, copies } = await fetched(fetcher, pool.ref, [block]);
    pool.give(block.offset);
    exported(pool, 0, 8);
    expect(status).to.equal('ok');
    expect(copies[0]?.every((byte) => byte === 7)).to.equal(true);
  });

  it('never yields a block whose slot was given to another', async () => {
    const old = exported(pool, 0, 7);
    pool.give(old.offset);
    const successor = exported(pool, 1, 8);
    expect(successor.offset).to.equal(old.offset);
    const { status, message, copies } = await fetched(fetcher, pool.ref, [old]);
    expect(status).to.equal('mismatch');
    expect(message).to.contain('block 0');
    expect(copies).to.have.length(0);
  });

  it('is refused under another owner, epoch, size, pid or fd', async () => {
    const block = exported(pool, 0, 7);
    const wrong: [Partial<PoolRef>, string][] = [
      [{ owner: 'p-2' }, 'gone'],
      [{ epoch: 2 }, 'gone'],
      [{ bytes: pool.ref.bytes + 4096 }, 'mismatch'],
      [{ bytes: 0 }, 'mismatch'],
      [{ pid: 2 ** 31 - 1 }, 'gone'],
      [{ pid: 2 ** 40 }, 'mismatch'],
      [{ fd: 0 }, 'gone'],
      [{ fd: 99_999 }, 'gone'],
    ];
    for (const [change, status] of wrong) {
      const result = await fetched(fetcher, { ...pool.ref, ...change }, [block]);
      expect(result.status, JSON.stringify(change)).to.equal(status);
    }
  });

  it('is never read outside its bounds', async () => {
    const block = exported(pool, 0, 7);
    for (const change of [{ offset: 0 }, { offset: pool.ref.bytes - 10 }, { offset: 2 ** 52 }, { bytes: 2 ** 31 }]) {
      const { status } = await fetched(fetcher, pool.ref, [{ ...block, ...change }]);
      expect(status, JSON.stringify(change)).to.equal('mismatch');
    }
  });

  it('of another process is read while that lives and gone once it was killed and forgotten', async () => {
    const child: ChildProcess = spawn(
      process.execPath,
      [
        '--input-type=module',
        '-e',
        `import { openKvPool } from ${JSON.stringify(new URL('../../gpu/index.js', import.meta.url).href)};
         const pool = openKvPool({ owner: 'p-9', epoch: 4, slotBytes: 1000, slots: 2 });
         const block = pool.put({ index: 0, tokens: 64, hash: '${hash(5)}', bytes: new Uint8Array(1000).fill(9) });
         process.stdout.write(JSON.stringify({ ref: pool.ref, block }) + '\\n');
         setInterval(() => pool.used, 1000);`,
      ],
      { stdio: ['ignore', 'pipe', 'inherit'] },
    );
    const [line] = (await once(child.stdout as NonNullable<typeof child.stdout>, 'data')) as [Buffer];
    const { ref, block } = JSON.parse(line.toString()) as { ref: PoolRef; block: BlockRef };
    const alive = await fetched(fetcher, ref, [block]);
    child.kill('SIGKILL');
    await once(child, 'exit');
    fetcher.forget('p-9');
    const dead = await fetched(fetcher, ref, [block]);
    expect(alive.status).to.equal('ok');
    expect(alive.copies[0]?.[999]).to.equal(9);
    expect(dead.status).to.equal('gone');
  });
});

describe('fetcher', () => {
  it('calls nobody back after it is closed', async () => {
    const pool = openKvPool({ owner: 'p-1', epoch: 1, slotBytes: 1000, slots: 3 });
    const fetcher = openKvFetcher();
    let calls = 0;
    const block = exported(pool, 0, 7);
    for (let i = 0; i < 50; i += 1) fetcher.fetch(pool.ref, [block], () => calls++);
    fetcher.close();
    fetcher.fetch(pool.ref, [block], () => calls++);
    const before = calls;
    const other = openKvFetcher();
    // A round trip through a second fetch thread and the event loop: whatever was queued would have come by then.
    expect((await fetched(other, pool.ref, [block])).status).to.equal('ok');
    expect(calls).to.equal(before);
    other.close();
    pool.close();
  });
});
