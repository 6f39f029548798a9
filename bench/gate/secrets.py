"""Positives for secrets from the rules of another scanner: `python secrets.py RULES.toml --seed 3 > secrets.jsonl`.

RULES.toml is a gitleaks configuration, given by its path (it is not part of this repository). For each rule a few strings that match
its regular expression are drawn at random and put into lines of code, configuration and prose. Strings that look like no secret are
left out as the scanner itself would (its entropy floor). A line is `{"text", "spans", "kind"}` for `lily gate eval`.

With `detect-secrets` instead of RULES.toml, the patterns are those of the PyPI package of that name: a second list, shorter, which the
recognisers' table was not compared with. The first list covers the same providers as the table does, since both gather what providers
document; what is independent in it is the strings and the lines they stand in.
"""

import argparse
import collections
import json
import math
import random
import re
import sys
import tomllib

import rstr

# Rules that take any text for the secret, or span several lines: strings drawn from them look like nothing in use.
LOOSE = {
    "generic-api-key", "kubernetes-secret-yaml", "curl-auth-header", "curl-auth-user", "nuget-config-password", "freemius-secret-key",
}

FRAMES = ["{}\n", "config:\n  {}\n", "# deploy notes\n{}\nend\n", "export X=1\n{}\n", "log: using {} now\n"]


# Plugins of detect-secrets that take any text, look for words around it, or of which a drawn string is nothing in use.
LOOSE_PLUGINS = {"basic_auth", "ip_public", "jwt", "npm", "private_key", "cloudant", "softlayer", "ibm_cloud_iam", "ibm_cos_hmac"}


def plugins():
    """The patterns of detect-secrets as rules."""
    import importlib
    import inspect
    import pkgutil

    import detect_secrets.plugins as package
    from detect_secrets.plugins.base import RegexBasedDetector

    for module in pkgutil.iter_modules(package.__path__):
        if module.name in LOOSE_PLUGINS:
            continue
        loaded = importlib.import_module(f"{package.__name__}.{module.name}")
        for _, found in inspect.getmembers(loaded, inspect.isclass):
            if issubclass(found, RegexBasedDetector) and found.__module__ == loaded.__name__ and not inspect.isabstract(found):
                for i, pattern in enumerate(found().denylist):
                    yield {"id": f"{module.name}-{i + 1}", "regex": pattern.pattern}


def entropy(text):
    counts = collections.Counter(text)
    return -sum(c / len(text) * math.log2(c / len(text)) for c in counts.values()) if text else 0


def split_long(match):
    """`[a-z]{186}` as `[a-z]{100}[a-z]{86}`."""
    kind, count = match.group(1), int(match.group(2))
    return "".join(f"{kind}{{{min(100, count - done)}}}" for done in range(0, count, 100))


def simplify(pattern):
    """Parts that only say what stands before and after a secret, in a form that draws ordinary text."""
    pattern = pattern.replace(r"[\w.-]{0,50}?", "").replace(r"(?:[ \t\w.-]{0,20})", "(?:_key|_token|_secret|_api_key)")
    pattern = pattern.replace("[\\s'\"]{0,3}", "").replace(r"(?:=|>|:{1,3}=|\|\||:|=>|\?=|,)", "(?:=|: | = |: )")
    pattern = pattern.replace("[\\x60'\"\\s=]{0,5}", "\"").replace("(?:[\\x60'\"\\s;]|\\\\[nr]|$)", "\"")
    pattern = pattern.replace("[[:alnum:]]", "[a-zA-Z0-9]").replace(r"\s*", " ").replace("\\-.", "-")
    # Dots that stand for any character though the secret has a dot there, and keys without the lines that keys have.
    pattern = pattern.replace("hooks.slack.com", r"hooks\.slack\.com").replace("xoxe.xox", r"xoxe\.xox")
    pattern = pattern.replace("[ A-Z0-9_-]{0,100}PRIVATE", " (?:RSA |EC |OPENSSH |)PRIVATE")
    pattern = pattern.replace(r"[\s\S-]{64,}?KEY", r"\n(?:[A-Za-z0-9+/]{64}\n){3}-----END PRIVATE KEY")
    # What ends a secret is no part of it, and base64 has no backslashes and line ends in it unless something else escaped it.
    pattern = re.sub(r"\(\?:\[\^a-zA-Z0-9\+/\]\|\\z\)$", "", pattern).replace(r"\/\\_+\-\r\n", r"\/_+\-")
    pattern = pattern.replace(r"(?!\w)", "").replace(r'(?:\s|=|:|"|^)', "").replace(r'(?:\s|"|$)', "")
    # The drawing library stops at 100 repetitions.
    pattern = re.sub(r"(\[[^\]]+\]|\\w)\{(\d{3,})(?:,\d*)?\}", split_long, pattern)
    return re.sub(r"\(\?-?i(?::|\))", lambda m: "(?:" if m.group().endswith(":") else "", pattern).replace(r"\z", "$")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rules")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--each", type=int, default=10)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    draw = rstr.Rstr(rng)
    if arguments.rules == "detect-secrets":
        rules = list(plugins())
    else:
        with open(arguments.rules, "rb") as file:
            rules = tomllib.load(file)["rules"]
    skipped = []
    for rule in rules:
        pattern = rule.get("regex")
        if not pattern or rule["id"] in LOOSE:
            skipped.append(rule["id"])
            continue
        flagged = pattern.startswith("(?i)")
        try:
            simple = simplify(pattern)
            compiled = re.compile(simple, re.IGNORECASE if flagged else 0)
            for _ in range(arguments.each):
                for _ in range(50):
                    text = draw.xeger(simple).replace('""', '"')
                    match = compiled.search(text)
                    groups = [g for g in match.groups() if g] if match else []
                    secret = max(groups, key=len, default="")
                    # A group may be a small part of what is secret.
                    secret = secret if 3 * len(secret) > len(text) or len(secret) >= 8 else text
                    secret = text if rule["id"] == "jwt-base64" else secret
                    secret = secret.strip("\"'` ;")
                    if entropy(secret) >= rule.get("entropy", 2) and "\n" not in secret.strip() or "PRIVATE" in secret:
                        break
                text = rng.choice(FRAMES).replace("{}", text)
                start = text.index(secret)
                span = {"start": start, "end": start + len(secret), "label": "SECRET"}
                print(json.dumps({"text": text, "spans": [span], "kind": rule["id"]}))
        except (re.error, ValueError, KeyError, IndexError) as error:
            skipped.append(f"{rule['id']} ({error})")
    print("skipped:", ", ".join(skipped), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
