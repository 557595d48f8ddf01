#!/usr/bin/env python3
"""Compares our tokenizer with the `tokenizers` package on generated strings.

    cargo build --release -p flint-runtime --example tokenize_lines
    python3 tests/oracle_tokenizers.py target/release/examples/tokenize_lines [COUNT [SEED]]

Needs the packages `tokenizers` and, to read another vocabulary than the bundled one (`--gguf MODEL.gguf`), `gguf`.
The other tokenizer is built from the same tokens and merges, with the model's own three expressions (look-ahead
included) as isolated splits. Every string is encoded twice: markers parsed, and markers as plain text. The exit status
is 1 when a string differs.
"""
import argparse, json, random, subprocess, sys, tempfile, unicodedata
from pathlib import Path
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

HERE = Path(__file__).resolve().parent
CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
SPLITS = [
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*{CONTRACTION}"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]


def read_vocabulary(gguf_path):
    """-> tokens, kinds, merges"""
    if gguf_path is None:
        tables = json.loads((HERE / "vectors/nano_vocabulary.json").read_text(encoding="utf-8"))
        return tables["tokens"], tables["kinds"], tables["merges"]
    from gguf import GGUFReader
    fields = GGUFReader(gguf_path).fields
    read = lambda key: fields["tokenizer.ggml." + key].contents()
    return read("tokens"), [int(kind) for kind in read("token_type")], read("merges")


def oracle(tokens, kinds, merges, parse):
    ids = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocab=ids, merges=[tuple(merge.split(" ")) for merge in merges]))
    splits = [Split(Regex(pattern), "isolated") for pattern in SPLITS]
    tokenizer.pre_tokenizer = Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])
    if parse:
        specials = [token for token, kind in zip(tokens, kinds) if kind in (3, 4)]
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return tokenizer


class Strings:
    """Strings of several sorts, from a seed."""

    def __init__(self, seed, tokens, kinds):
        self.rng = random.Random(seed)
        self.specials = [token for token, kind in zip(tokens, kinds) if kind in (3, 4)]
        self.words = [token.replace("Ġ", " ").replace("Ċ", "\n") for token, kind in zip(tokens, kinds) if kind == 1]
        by_category = {}
        for code in range(0x110000):
            if not 0xD800 <= code < 0xE000:
                by_category.setdefault(unicodedata.category(chr(code)), []).append(chr(code))
        # Characters whose category depends on the Unicode version would test the tables, not the tokenizer.
        by_category.pop("Cn")
        self.by_category = by_category
        self.space = list(" \t\n\r\v\f\u0085\u00a0\u2003\u2028\u3000\ufeff\u001c")
        self.ascii = [chr(code) for code in range(32, 127)]
        self.text = (HERE.parent / "README.md").read_text(encoding="utf-8") if (HERE.parent / "README.md").exists() else ""
        self.text += Path(__file__).read_text(encoding="utf-8")

    def run(self, characters, most):
        return "".join(self.rng.choices(characters, k=self.rng.randint(0, most)))

    def word(self):
        pick = self.rng.random()
        if pick < 0.4:
            return self.rng.choice(self.words)
        if pick < 0.5:
            return self.run("0123456789٣५²Ⅷ１", 9)
        if pick < 0.6:
            return self.run(self.space, 6)
        if pick < 0.7:
            return self.run(self.rng.choice(list(self.by_category.values())), 6)
        if pick < 0.8:
            return self.rng.choice(["don't", "WE'LL", "I'm", "x'S", "'tis", "o'Re", "d'D", "it’s"])
        if pick < 0.9:
            return self.run("日本語ひらカナ한국어éÉßǅʰªا", 5)
        return self.rng.choice(self.specials)[: self.rng.choice([99, 99, 5, 3])]

    def one(self):
        sort = self.rng.randrange(6)
        if sort == 0:
            return "".join(self.word() for _ in range(self.rng.randint(0, 12)))
        if sort == 1:
            return self.run(self.ascii + self.space * 3, 40)
        if sort == 2:
            return "".join(self.rng.choice(self.rng.choice(list(self.by_category.values()))) for _ in range(self.rng.randint(1, 24)))
        if sort == 3:
            at = self.rng.randrange(len(self.text))
            return self.text[at : at + self.rng.randint(1, 300)]
        if sort == 4:
            return "".join(self.rng.choice(self.space) if self.rng.random() < 0.6 else self.rng.choice("aZ.9日'") for _ in range(self.rng.randint(1, 20)))
        return self.rng.choice(self.words) * self.rng.randint(1, 60)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("program", help="the built example tokenize_lines")
    arguments.add_argument("count", type=int, nargs="?", default=20_000)
    arguments.add_argument("seed", type=int, nargs="?", default=1)
    arguments.add_argument("--gguf", help="take the vocabulary from this model")
    options = arguments.parse_args()
    tokens, kinds, merges = read_vocabulary(options.gguf)
    strings = Strings(options.seed, tokens, kinds)
    texts = [strings.one() for _ in range(options.count)]
    lines = "".join(json.dumps(text) + "\n" for text in texts).encode()
    differing = 0
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump({"tokens": tokens, "kinds": kinds, "merges": merges}, file)
        file.flush()
        for parse in (False, True):
            command = [options.program, file.name] + ["--parse"] * parse
            output = subprocess.run(command, input=lines, stdout=subprocess.PIPE, check=True).stdout
            ours = [json.loads(line) for line in output.splitlines()]
            assert len(ours) == len(texts), f"{len(ours)} answers to {len(texts)} texts"
            other = oracle(tokens, kinds, merges, parse)
            for text, got, encoding in zip(texts, ours, other.encode_batch(texts, add_special_tokens=False)):
                if got != encoding.ids:
                    differing += 1
                    if differing <= 10:
                        print(f"differs (markers {'parsed' if parse else 'plain'}): {text!r}\n  ours  {got}\n  other {encoding.ids}")
    characters = sum(map(len, texts))
    print(f"{len(texts)} strings ({characters} characters, seed {options.seed}), each with markers parsed and plain: {differing} differ")
    sys.exit(differing > 0)


if __name__ == "__main__":
    main()
