/**
 * The fixed text on which a converted model is compared with its source: about a thousand tokens of plain prose. Written for
 * this purpose, so that no model has seen it. Changing it makes every stored perplexity incomparable.
 */
export const perplexityText = `The lighthouse at Farrow Point was built in the year the railway came to the coast, and for a long time the two had nothing
to do with each other. Trains brought visitors to the town in summer; the light kept ships away from the rocks in winter. The
keeper, a careful man called Alder, wrote both facts into his book on the same page, because he believed that everything which
happened near the light belonged there. His entries were short. Wind from the north-west, strong. Oil for nine days. Two
gulls in the lamp room. Train late.

When his daughter took over the book she added reasons. The wind was strong because the pressure had fallen since noon; the oil
would last nine days if the nights did not grow longer, but they did, so she ordered more on Tuesday; the gulls came in because a
pane was broken, and the pane was broken because a slate had come down in the storm. People in the town said that she thought too
much. The harbour master did not. He had noticed that ships which asked her for advice arrived, while those which asked the barometer
arrived most of the time.

One autumn a fog came in that did not lift for eleven days. The bell was rung every two minutes, day and night, and since no one
person can ring a bell for eleven days, the town drew up a list. The baker took the hours before dawn, for he was awake anyway. The
teacher took the afternoon and brought the older children, who counted the seconds aloud and learned more about division than they
had in a year. The station master took the evening. On the fourth day a ship answered with its horn, far out and to the south, where no
ship should have been. Everybody on the rocks stopped to listen. If they rang faster, the captain would know that he had been
heard, but he might believe that he was closer than he was. If they kept the rhythm, he could measure the distance by the delay, but he
would not know that anybody was there.

The keeper's daughter decided that they should do both. For one minute they rang as fast as the baker could pull, and then they
went back to the old rhythm exactly on the second, as if nothing had happened. After a silence the horn answered in the same way: a
burst of short calls, and then one long call every two minutes. It was, the teacher said later, the first conversation that she
had ever heard in which neither side used a word. By midnight the ship had turned, by morning it lay at anchor in the bay, and at
breakfast its captain came ashore to ask who had been speaking to him.

He was told that it had been eleven people, and that the baker had done most of the pulling. That, he said, explained why the accent had
changed during the night. He stayed for three days, until the fog thinned, and he spent most of them reading the book. Before he
left he asked whether he might copy some of the pages. There was a rule at sea, he said, that you write down what you did, and a
custom that you do not write down why, since the reason may turn out to be wrong. He thought that the custom was a mistake. A wrong
reason can be corrected by whoever reads it next, but a missing one has to be invented, and people who invent reasons are seldom
as careful as people who remember them.

The light was made electric some years afterwards, and the bell was replaced by a horn that needed no list. Nobody was sorry, for
the work had been hard and cold. But the book was kept, and it is still kept, in the same hand as far as anyone can tell, although
there have been six keepers since. The entries are short. Wind from the west, light. A bulb replaced, because its predecessor had
burned for two thousand hours, and the maker promises only fifteen hundred. Two gulls on the rail. Train on time, which is worth
noting, since it was the first dry Monday of the month.
`;
