const alphabet = '0123456789abcdefghjkmnpqrstvwxyz';

/** When a request's id was minted, milliseconds since 1970 by its gateway's clock: its first ten characters. */
export function mintedAt(id: string): number {
  let time = 0;
  for (const digit of id.slice(0, 10)) time = time * 32 + alphabet.indexOf(digit);
  return time;
}
