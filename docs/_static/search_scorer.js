// Pages that say how to do something come before lists, and before the API, which has the same words
// in signatures.
const FOLDERS = { tutorials: 20, "how-to": 30, explanations: 12, notebooks: -4 };

var Scorer = {
  score: ([docname, title, anchor, descr, score]) => {
    if (docname.startsWith("reference/api/") || docname.endsWith("index")) return score - 20;
    return score + (FOLDERS[docname.split("/")[0]] ?? 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
