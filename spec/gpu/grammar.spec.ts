import { expect } from 'chai';
import Schema from 'typebox/schema';
import { callMarks } from '../../gateway/answer/delta.js';
import { readAnswer } from '../../gateway/answer/whole.js';
import { grammarOf, type Output } from '../../gateway/grammar/output.js';
import { openVocabulary, type Vocabulary } from '../../gpu/index.js';
import { greedy, openRig, prompt, type Rig, seeded, tinyModelFile } from './llama-rig.js';

const schemas: Readonly<Record<string, Record<string, unknown>>> = {
  'required and optional properties': {
    type: 'object',
    properties: { a: { type: 'integer', minimum: -12, maximum: 105 }, b: { type: 'boolean' }, c: { type: 'null' } },
    required: ['a'],
    additionalProperties: false,
  },
  'only optional properties': {
    type: 'object',
    properties: { 'a "quoted" name': { enum: ['x', 1, null] }, b: { type: 'boolean' }, c: { const: { d: ['\n'] } } },
  },
  'bounded strings and arrays': {
    type: 'array',
    items: { type: 'string', minLength: 2, maxLength: 4 },
    minItems: 1,
    maxItems: 3,
  },
  'a pattern': { type: 'string', pattern: '^[A-F]{2}-\\d{1,3}("|\\\\|é)$' },
  'a recursion': {
    $ref: '#/$defs/node',
    $defs: {
      node: {
        type: 'object',
        properties: {
          v: { type: 'integer', exclusiveMinimum: 0, exclusiveMaximum: 10 },
          next: { anyOf: [{ type: 'null' }, { $ref: '#/$defs/node' }] },
        },
        required: ['v', 'next'],
      },
    },
  },
  'parts that hold together': {
    allOf: [
      { type: 'object', properties: { a: { type: 'boolean' } }, required: ['a'] },
      { type: 'object', properties: { b: { type: ['boolean', 'null'] } }, required: ['b'] },
    ],
  },
  'a tuple': {
    type: 'array',
    prefixItems: [{ type: 'boolean' }, { type: 'integer', minimum: 3 }],
    items: false,
    minItems: 2,
  },
  'a date and a UUID': {
    type: 'object',
    properties: { d: { type: 'string', format: 'date-time' }, u: { type: 'string', format: 'uuid' } },
    required: ['d', 'u'],
  },
};
const bounded = { maxTokens: 900, ignoreEos: false };

/** Random weights write anything: what they write under a grammar shows what the grammar allows. */
describe('Grammar of an answer', () => {
  let rig: Rig;
  let vocabulary: Vocabulary;
  before(async () => {
    vocabulary = openVocabulary({ model: 'tiny', path: tinyModelFile() });
    rig = await openRig(tinyModelFile(), { slots: 8, sequenceTokens: 1024, exportBlocks: 64, owner: 'sender' });
  });
  after(() => rig.engine.stop());

  const textOf = (tokens: readonly number[]) =>
    Buffer.concat(tokens.map((token) => vocabulary.piece(token))).toString();
  const write = async (output: Output, seed: number): Promise<string> => {
    const grammar = grammarOf(output, false);
    const sampling = { ...seeded, temperature: 1.5, topP: 1, topK: 0, seed, grammar };
    const { tokens, failed } = await rig.generate(prompt(seed, 20, vocabulary.size), sampling, bounded);
    expect(failed).to.equal(undefined);
    return textOf(tokens);
  };

  for (const [name, schema] of Object.entries(schemas)) {
    it(`makes JSON that fits ${name}`, async () => {
      const check = Schema.Compile(schema);
      const texts = await Promise.all(
        Array.from({ length: 8 }, (_, seed) => write({ kind: 'schema', schema, enforce: 'all' }, seed)),
      );
      // Single bytes of random weights make characters that none can count.
      const sound = texts.filter((text) => !text.includes('\ufffd'));
      for (const text of texts) JSON.parse(text);
      for (const text of sound) expect(check.Check(JSON.parse(text)), text).to.equal(true);
      expect(new Set(sound).size).to.be.above(1);
    });
  }

  it('makes texts that a regular expression matches, and one of a choice', async () => {
    const pattern = '(?:ab?|[^a-y\\W]{2,3})+\\.(\\d|-){2}\\u00e9?';
    for (let seed = 0; seed < 6; seed++) {
      expect(await write({ kind: 'regex', pattern }, seed)).to.match(new RegExp(`^${pattern}$`, 'u'));
      expect(['yes', 'no "x"\n']).to.include(await write({ kind: 'choice', options: ['yes', 'no "x"\n'] }, seed));
    }
  });

  it('makes calls of tools that are read as such', async () => {
    const tools = [
      {
        name: 'add',
        parameters: { type: 'object', properties: { a: { type: 'integer', minimum: 0, maximum: 9 } }, required: ['a'] },
      },
      { name: 'now', parameters: { type: 'object', properties: {}, additionalProperties: false } },
    ];
    const seen = new Set<string>();
    for (let seed = 0; seed < 8; seed++) {
      const text = await write({ kind: 'calls', tools, parallel: true }, seed);
      expect(text.startsWith(callMarks.open)).to.equal(true);
      const answer = readAnswer(text, 'stop', { tools: ['add', 'now'] });
      expect(answer.text).to.equal('');
      expect(answer.finish).to.equal('tool_calls');
      for (const call of answer.calls) {
        seen.add(call.name);
        expect(Object.keys(JSON.parse(call.arguments) as object)).to.deep.equal(call.name === 'add' ? ['a'] : []);
      }
    }
    expect(seen.size).to.equal(2);
  });

  it('is followed alike alone, handed over and migrated, greedy and seeded', async () => {
    const grammar = grammarOf({ kind: 'schema', schema: schemas['bounded strings and arrays'], enforce: 'all' }, false);
    const receiver = await openRig(tinyModelFile(), { slots: 4, sequenceTokens: 1024 });
    try {
      for (const [at, base] of [greedy, seeded, { ...seeded, seed: 7 }].entries()) {
        const sampling = { ...base, grammar };
        const input = prompt(at, 100, vocabulary.size);
        const { tokens } = await rig.generate(input, sampling, bounded);
        expect(JSON.parse(textOf(tokens))).to.be.an('array');
        const handed = await receiver.receive(rig, input, sampling, bounded);
        expect(handed.failed).to.equal(undefined);
        expect(handed.tokens).to.deep.equal(tokens);
        for (let cut = 1; cut < tokens.length; cut += 2) {
          const generated = Uint32Array.from(tokens.slice(0, cut));
          const rest = await receiver.generate(input, sampling, { ...bounded, choices: [{ index: 0, generated }] });
          expect([...generated, ...rest.tokens]).to.deep.equal(tokens);
        }
      }
    } finally {
      await receiver.engine.stop();
    }
  });

  it('ends a complete text, whatever the least number of tokens', async () => {
    const grammar = grammarOf({ kind: 'choice', options: ['yes'] }, false);
    const { tokens, failed } = await rig.generate(
      prompt(1, 8, vocabulary.size),
      { ...greedy, grammar },
      { ...bounded, minTokens: 50 },
    );
    expect(failed).to.equal(undefined);
    expect(textOf(tokens)).to.equal('yes');
  });

  it('that cannot be parsed fails its request alone, and tokens that break it do too', async () => {
    const others = rig.generate(prompt(3, 40, vocabulary.size), greedy, bounded);
    const broken = await rig.generate(prompt(2, 8, vocabulary.size), { ...greedy, grammar: 'root ::= "a' }, bounded);
    expect(broken.failed?.code).to.equal('GPU_BAD_REQUEST');
    const foreign = {
      ...bounded,
      choices: [{ index: 0, generated: vocabulary.tokenize('no', { special: false, addBos: false }) }],
    };
    const grammar = grammarOf({ kind: 'choice', options: ['yes'] }, false);
    const other = await rig.generate(prompt(2, 8, vocabulary.size), { ...greedy, grammar }, foreign);
    expect(other.failed?.message).to.include('do not follow the grammar');
    expect((await others).failed).to.equal(undefined);
    expect(rig.engine.load().busySlots).to.equal(0);
  });

  it('is refused before the engine sees it, with its fault', () => {
    for (const text of ['root ::= "a', 'a ::= "b"', 'root ::= root "a"', 'root ::= b']) {
      expect(vocabulary.grammarFault?.(text), text).not.to.equal('');
    }
    expect(vocabulary.grammarFault?.(`root ::= "${'a'.repeat(70_000)}"`)).to.include('longer than');
    expect(vocabulary.grammarFault?.('root ::= "a"')).to.equal('');
  });

  it('of a client is looked over first, and the fault is told with its line', () => {
    const faultOf = (text: string) => {
      try {
        grammarOf({ kind: 'grammar', text }, false);
      } catch (error) {
        return (error as Error).message;
      }
      return vocabulary.grammarFault?.(text) ?? '';
    };
    const arithmetic =
      'root ::= (expr "=" ws term "\\n")+ # sums\nexpr ::= term ([-+*/] term)*\nterm ::= num | "(" ws expr ")" ws\nnum ::= [0-9]+ ws\nws ::= [ \\t\\n]{0,3}\n';
    expect(faultOf(arithmetic)).to.equal('');
    expect(faultOf('root ::= "a')).to.equal('cannot be read at line 1');
    expect(faultOf('root ::= a\n\na ::= b')).to.equal('has no rule b, which it names at line 3');
    expect(faultOf('a ::= "b"')).to.equal('has no rule root at line 1');
    expect(faultOf(`root ::= ${'('.repeat(30_000)}"a"${')'.repeat(30_000)}`)).to.equal(
      'is nested deeper than 64 levels at line 1',
    );
    expect(faultOf('root ::= "a"{2000}')).to.include('repeats more than');
    expect(faultOf('root ::= * "a"')).to.equal('repeats nothing at line 1');
    expect(faultOf('root ::= ("a"')).to.include('unmatched (');
    expect(faultOf('root ::= "a" b ::= "c"')).to.include('a line of its own');
    expect(faultOf('')).to.equal('has no rule root at line 1');
    expect(faultOf('root ::= <[12]>')).to.equal('cannot be read at line 1');
  });

  it('names what it cannot say of a schema, where', () => {
    const faultOf = (schema: unknown) => {
      try {
        grammarOf({ kind: 'schema', schema, enforce: 'all' }, false);
      } catch (error) {
        return (error as { path: string }).path;
      }
      return undefined;
    };
    expect(faultOf({ type: 'object', properties: { a: { type: 'array', uniqueItems: true } } })).to.equal(
      '.properties.a.uniqueItems',
    );
    expect(faultOf({ type: 'number', minimum: 1 })).to.equal('.minimum');
    expect(faultOf({ not: {} })).to.equal('.not');
    expect(faultOf({ $ref: '#/nowhere' })).to.equal('.$ref');
    expect(faultOf({ $ref: '#' })).to.equal('.$ref');
    expect(faultOf({ type: 'integer', minimum: 3, maximum: 2 })).to.equal('');
    expect(faultOf({ type: 'string', pattern: '(?=a)' })).to.equal('.pattern');
    expect(faultOf({ type: 'float' })).to.equal('.type');
    expect(
      grammarOf({ kind: 'schema', schema: { type: 'number', minimum: 1 }, enforce: 'possible' }, false),
    ).to.include('number');
  });
});
