import { expect } from 'chai';
import { cellsNamed, quickCells } from '../../bench/faults/cells.js';
import { type Baselines, runCell, type Setting, undisturbed } from '../../bench/faults/run-cell.js';

/** As the benchmark runs it, with shorter answers: what is left of them when the fault comes is more than it lasts. */
const setting: Setting = { engine: 'mock', streams: 32, tokens: 120 };
const cells = cellsNamed(quickCells);

describe('A node of 2 + 2 workers and 2 gateways that is hit while it answers 32 streams', function () {
  // A cell takes 5 to 10 s, and its own deadlines, which say more than this one, 85 s at most.
  this.timeout(150_000);
  let baselines: Baselines;

  before(async () => {
    baselines = await undisturbed(
      cells.map(({ phase }) => phase),
      setting,
    );
  });

  for (const cell of cells) {
    it(`completes every stream that can be answered, with the text of an undisturbed run, and keeps nothing: ${cell.name}`, async () => {
      const { streams, excused, complete, identical, hung, leaked, reasons } = await runCell(cell, setting, baselines);
      expect(excused < streams, 'a gateway had all the streams').to.equal(true);
      if (!cell.gatewayDies) expect(excused).to.equal(0);
      const wanted = streams - excused;
      expect({ complete, identical, hung, leaked, reasons }).to.deep.equal({
        complete: wanted,
        identical: wanted,
        hung: 0,
        leaked: [],
        reasons: {},
      });
    });
  }
});
