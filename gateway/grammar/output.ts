/** What a request wants its answer to look like, and the grammar that makes it so. */
import { callMarks } from '../answer/delta.js';
import type { Tool } from '../tools.js';
import { checkGbnf } from './gbnf.js';
import { plain } from './json.js';
import { type Enforce, schemaRule } from './json-schema.js';
import { regexGrammar } from './regex.js';
import { GrammarFault, literal, Rules } from './rules.js';

export type Output =
  | { readonly kind: 'json' }
  | { readonly kind: 'schema'; readonly schema: unknown; readonly enforce: Enforce }
  | { readonly kind: 'regex'; readonly pattern: string }
  | { readonly kind: 'choice'; readonly options: readonly string[] }
  | { readonly kind: 'grammar'; readonly text: string }
  /** One of these calls and nothing else; more than one if `parallel`. */
  | { readonly kind: 'calls'; readonly tools: readonly Tool[]; readonly parallel: boolean };

/** Calls in one answer, so that a model that does not stop calling ends. */
const mostCalls = 8;

/**
 * GBNF whose rule is `root`. `thinks`: the model's prompt has opened its reasoning, which comes before the answer and is free. Throws
 * GrammarFault.
 */
export function grammarOf(output: Output, thinks: boolean): string {
  if (output.kind === 'grammar') {
    if (thinks) throw new GrammarFault('', 'cannot follow the reasoning of this model');
    checkGbnf(output.text);
    return output.text;
  }
  const rules = new Rules();
  const body = bodyOf(output, rules);
  return rules.text(thinks ? `${rules.named('thought', '([^<] | "<" [^/])* "</think>" "\\n"{0,2}')} ${body}` : body);
}

function bodyOf(output: Exclude<Output, { kind: 'grammar' }>, rules: Rules): string {
  switch (output.kind) {
    case 'json':
      return (plain.object as (rules: Rules) => string)(rules);
    case 'schema':
      return schemaRule(rules, output.schema, output.enforce);
    case 'regex':
      return regexGrammar(output.pattern, '');
    case 'choice':
      return rules.named('choice', output.options.map(literal).join(' | '));
    case 'calls': {
      const one = output.tools.map(({ name, parameters }) => {
        const given = schemaRule(rules, parameters, 'possible');
        return rules.named('call', `${literal(`{"name": ${JSON.stringify(name)}, "arguments": `)} ${given} "}"`);
      });
      const call = rules.named(
        'tool-call',
        `${literal(`${callMarks.open}\n`)} (${one.join(' | ')}) ${literal(`\n${callMarks.close}`)}`,
      );
      return output.parallel ? `${call} ("\\n" ${call}){0,${mostCalls - 1}}` : call;
    }
  }
}
