#!/usr/bin/python3
"""Tables of evaluate.py's figures in Markdown.

    report.py RUN/NAME.test.json
"""
import json
import sys

RULES = ("greedy", "coupled", "rejection", "block")
DOMAINS = ("fiction", "code", "json", "all")


def row(*cells):
    print("| %s |" % " | ".join(cells))


def main():
    with open(sys.argv[1]) as f:
        report = json.load(f)
    g, rules = report["gamma"], report["rules"]
    present = [r for r in RULES if "all/" + r in rules]
    print("Tokens a round and acceptance of draft k given that those before it were kept:\n")
    row("text", "rule", "rounds", "tokens a round", *[str(k + 1) for k in range(g)])
    row(*["---"] * (4 + g))
    for domain in DOMAINS:
        for rule in present:
            e = rules["%s/%s" % (domain, rule)]
            row(domain, rule, str(e["rounds"]), "%.2f" % e["tokens_per_round"],
                *["." if x != x else ("%.2f" % x).lstrip("0") for x in e["by_position"]])
    print("\nWhat the exactness of `coupled` costs, tokens a round of sampled text:\n")
    row("text", "coupled", "rejection", "block", "coupled / rejection")
    row(*["---"] * 5)
    for domain in DOMAINS:
        x = [rules["%s/%s" % (domain, r)]["tokens_per_round"] for r in RULES[1:]]
        row(domain, *["%.2f" % v for v in x], "%.3f" % (x[0] / x[1]))
    print("\nConfidence: calibration error of survivals before and after scaling, discrimination,"
          "\nlength predicted (scaled) and observed in rounds of full blocks:\n")
    row("text", "rule", "ECE raw", "ECE scaled", "AUC", "predicted raw", "scaled", "observed",
        "scaled / observed")
    row(*["---"] * 9)
    for domain in DOMAINS:
        for rule in present:
            e = rules["%s/%s" % (domain, rule)]
            raw, now = e["raw"], e.get("scaled", e["raw"])
            row(domain, rule, "%.3f" % raw["ece"], "%.3f" % now["ece"], "%.2f" % now["auc"],
                "%.2f" % raw["predicted"], "%.2f" % now["predicted"], "%.2f" % now["observed"],
                "%.3f" % (now["predicted"] / now["observed"]))
    print("\nRounds of whole blocks by the mean entropy, in nats, of the target's distributions over the"
          " block: tokens a\nround (rounds). And the mean over all rounds:\n")
    bands = [b["from"] for b in rules["all/" + present[0]]["by_entropy"]]
    names = ["%g to %g" % b for b in zip(bands, bands[1:])] + ["%g and more" % bands[-1]]
    row("text", "rule", *names, "mean entropy")
    row(*["---"] * (3 + len(bands)))
    for domain in DOMAINS:
        for rule in present:
            e = rules["%s/%s" % (domain, rule)]
            row(domain, rule, *["%.2f (%d)" % (b["tokens_per_round"], b["rounds"]) if b["rounds"] > 9
                                else "." for b in e["by_entropy"]], "%.2f" % e["entropy"])
    print("\nTeacher-forced tau of sampled text over all positions against tokens a round of the walk"
          " (rejection):\n")
    row("text", "tau", "walk")
    row("---", "---", "---")
    for domain, tau in report["offline_tau"].items():
        row(domain, "%.2f" % tau, "%.2f" % rules[domain + "/rejection"]["tokens_per_round"])
    print("\nPicks of the target equal to the server's: %.5f of %d." %
          (report["same_pick"], report["picks"]))


if __name__ == "__main__":
    main()
