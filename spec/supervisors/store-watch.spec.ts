import { expect } from 'chai';
import { watchStores } from '../../supervisors/store-watch.js';

/** One entry a round: whether it is stored, bytes that are free then. */
function watch(
  rounds: readonly (readonly [stored: boolean, free: number, up?: boolean])[],
): Promise<readonly string[]> {
  const said: string[] = [];
  let round = -1;
  return new Promise((resolve) => {
    const stop = watchStores(
      {
        up() {
          round++;
          if (round >= 2 * rounds.length) {
            stop();
            resolve(said);
          }
          return rounds[Math.floor(round / 2)]?.[2] ?? true;
        },
        store: () =>
          rounds[Math.floor(round / 2)]?.[0] === true ? Promise.resolve() : Promise.reject(new Error('late')),
        freeBytes: async () => rounds[Math.floor(round / 2)]?.[1] ?? 0,
      },
      (free) => said.push(`full ${free}`),
      () => resolve([...said, 'anew']),
      1,
    );
  });
}

const space = 1e9;

describe('The watch over what a broker stores', () => {
  it('says nothing of one that stores, or is slow once', async () => {
    expect(
      await watch([
        [true, space],
        [false, space],
        [true, space],
        [false, 0],
        [true, 0],
      ]),
    ).to.deep.equal([]);
  });

  it('has one started anew that stores nothing though there is space', async () => {
    expect(
      await watch([
        [true, space],
        [false, space],
        [false, space],
      ]),
    ).to.deep.equal(['anew']);
  });

  it('says once that the disk is full, and has the server started anew when there is space', async () => {
    expect(
      await watch([
        [false, 5],
        [false, 5],
        [false, 4],
        [false, 3],
        [false, space],
      ]),
    ).to.deep.equal(['full 5', 'anew']);
    expect(
      await watch([
        [false, 5],
        [false, 5],
        [true, 5],
        [false, 4],
        [false, 4],
      ]),
    ).to.deep.equal(['full 5', 'full 4']);
  });
});
