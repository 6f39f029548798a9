"""Compares the national numbers' check digits with python-stdnum, on random numbers and on its own valid ones.

    python audit_schemes.py path/to/gate_tool

`gate_tool` is the example of crates/lily-gate. Prints one line a scheme: numbers tried, agreements, and the first disagreements.
Exits with status 1 if a scheme disagrees that is not listed as different on purpose.
"""

import importlib
import json
import random
import string
import subprocess
import sys

# Scheme: module of python-stdnum, shape (d digit, a letter; anything else itself), and a reason if the two differ on purpose.
SCHEMES = {
    "ar_cuit": ("ar.cuit", "ddddddddddd", "prefix 25 is used since 2021, python-stdnum does not know it"),
    "at_svnr": ("at.vnr", "dddddddddd", None),
    "au_tfn": ("au.tfn", "ddddddddd", None),
    "be_nn": ("be.nn", "ddddddddddd", "days over 31 that it takes for unknown dates"),
    "bg_egn": ("bg.egn", "dddddddddd", None),
    "br_cnpj": ("br.cnpj", "dddddddddddddd", None),
    "br_cpf": ("br.cpf", "ddddddddddd", None),
    "ca_sin": ("ca.sin", "ddddddddd", "first digits 0 and 8 are given to nobody"),
    "ch_ahv": ("ch.ssn", "756dddddddddd", None),
    "cl_rut": ("cl.rut", "dddddddd#", None),
    "cn_ric": ("cn.ric", "dddddddddddddddddd", "years outside 1850 to 2100; provinces are checked by their first two digits only"),
    "co_nit": ("co.nit", "dddddddddd", None),
    "cz_rc": ("cz.rc", "dddddddddd", "months of more than 12 that its remainders let pass"),
    "de_idnr": ("de.idnr", "ddddddddddd", None),
    "do_cedula": ("do.cedula", "ddddddddddd", "python-stdnum has a list of exceptions"),
    "ec_ci": ("ec.ci", "dddddddddd", None),
    "ee_ik": ("ee.ik", "ddddddddddd", None),
    "es_dni": ("es.dni", "dddddddda", None),
    "es_nie": ("es.nie", "Xddddddda", None),
    "fi_hetu": ("fi.hetu", "dddddd-ddd#", "the century sign is not part of the check"),
    "fr_nif": ("fr.nif", "ddddddddddddd", None),
    "fr_nir": ("fr.nir", "ddddddddddddddd", "sexes 5, 6, 9, 0 and months that do not exist"),
    "gb_nhs": ("gb.nhs", "dddddddddd", None),
    "gb_utr": ("gb.utr", "dddddddddd", None),
    "gr_afm": ("gr.vat", "ddddddddd", None),
    "gr_amka": ("gr.amka", "ddddddddddd", "centuries are not told apart"),
    "hr_oib": ("hr.oib", "ddddddddddd", None),
    "id_nik": ("id.nik", "dddddddddddddddd", "districts are not checked"),
    "ie_pps": ("ie.pps", "ddddddda", None),
    "il_id": ("il.idnr", "ddddddddd", None),
    "in_aadhaar": ("in_.aadhaar", "dddddddddddd", None),
    "in_pan": ("in_.pan", "aaaaadddda", None),
    "is_kennitala": ("is_.kennitala", "dddddddddd", "the ninth digit's century"),
    "it_cf": ("it.codicefiscale", "aaaaaaddaddaddda", "dates of 31 days in shorter months"),
    "kr_rrn": ("kr.rrn", "ddddddddddddd", "numbers since 2020 have no check digit"),
    "lt_asmens": ("lt.asmens", "ddddddddddd", "first digit 9 stands for a number without a date, which 11 digits alone do not show"),
    "mx_curp": ("mx.curp", "aaaaddddddaaaaaadd", "states are not checked"),
    "my_nric": ("my.nric", "dddddddddddd", "places are checked by exclusion"),
    "nl_bsn": ("nl.bsn", "ddddddddd", None),
    "no_fnr": ("no.fodselsnummer", "ddddddddddd", "centuries of the individual number"),
    "nz_ird": ("nz.ird", "ddddddddd", None),
    "pe_ruc": ("pe.ruc", "ddddddddddd", "prefix 16"),
    "pk_cnic": ("pk.cnic", "ddddddddddddd", None),
    "pl_nip": ("pl.nip", "dddddddddd", None),
    "pl_pesel": ("pl.pesel", "ddddddddddd", None),
    "pt_cc": ("pt.cc", "dddddddddaad", None),
    "pt_nif": ("pt.nif", "ddddddddd", None),
    "ro_cnp": ("ro.cnp", "ddddddddddddd", "dates of the future"),
    "ru_inn": ("ru.inn", "dddddddddddd", None),
    "se_pnr": ("se.personnummer", "dddddd-dddd", "centuries are not told apart"),
    "si_emso": ("si.emso", "ddddddddddddd", None),
    "sk_rc": ("sk.rc", "dddddddddd", "months of more than 12 that its remainders let pass"),
    "th_pin": ("th.pin", "ddddddddddddd", None),
    "tr_tckn": ("tr.tckimlik", "ddddddddddd", None),
    "ua_rnokpp": ("ua.rntrc", "dddddddddd", None),
    "us_ein": ("us.ein", "ddddddddd", "prefixes assigned since the list was made"),
    "us_itin": ("us.itin", "9dddddddd", "groups 50 to 65 are given out since 2013"),
    "us_ssn": ("us.ssn", "ddddddddd", "numbers used in advertisements"),
    "ve_rif": ("ve.rif", "Vddddddddd", None),
    "za_id": ("za.idnr", "ddddddddddddd", None),
}


def draw(shape, rng):
    sets = {"d": string.digits, "a": string.ascii_uppercase, "#": string.digits + string.ascii_uppercase}
    return "".join(rng.choice(sets[c]) if c in sets else c for c in shape)


def candidates(shape, valid, count, rng):
    """Random numbers, half of them made valid by trying the last two places, and neighbours of valid ones."""
    out = []
    while len(out) < count:
        number = draw(shape, rng)
        out.append(number)
        if len(out) % 2 == 0:
            # A plausible date in the first six places makes schemes with dates worth trying.
            day = f"{rng.randrange(100):02}{rng.randrange(1, 13):02}{rng.randrange(1, 29):02}"
            for head in (number[:0], number[:1], number[:6]):
                tail = number[len(head):]
                at = next((i for i in range(len(tail) - 5) if tail[i:i + 6].isdigit()), None)
                if at is None:
                    continue
                dated = head + tail[:at] + day + tail[at + 6:]
                for end in string.digits + (string.ascii_uppercase if not shape.endswith("d") else ""):
                    if valid(dated[:-1] + end):
                        out.append(dated[:-1] + end)
                        break
        for end in string.digits + (string.ascii_uppercase if not shape.endswith("d") else ""):
            if valid(number[:-1] + end):
                out.append(number[:-1] + end)
                break
    return out[:count]


def guarded(valid):
    """Some of python-stdnum's look-ups raise errors of their own for numbers of no place."""

    def holds(number):
        try:
            return bool(valid(number))
        except (KeyError, IndexError, ValueError):
            return False

    return holds


def main():
    tool = sys.argv[1]
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 4000
    rng = random.Random(20)
    ours = set(subprocess.run([tool, "schemes"], capture_output=True, text=True, check=True).stdout.split())
    report, bad = {}, 0
    for scheme, (module, shape, reason) in SCHEMES.items():
        valid = guarded(importlib.import_module("stdnum." + module).is_valid)
        numbers = candidates(shape, valid, count, rng)
        lines = "".join(f"{scheme} {n.replace('-', '')}\n" for n in numbers)
        answers = subprocess.run([tool, "check"], input=lines, capture_output=True, text=True, check=True).stdout.split()
        pairs = [(n, bool(valid(n)), a == "1") for n, a in zip(numbers, answers)]
        differ = [p for p in pairs if p[1] != p[2]]
        missed = [p for p in differ if p[1]]
        report[scheme] = {
            "tried": len(pairs), "valid": sum(p[1] for p in pairs), "agree": len(pairs) - len(differ),
            "valid_there_not_here": len(missed), "on_purpose": reason,
        }
        state = "ok" if not differ else ("differs: " + reason if reason else "DIFFERS")
        bad += bool(differ and not reason)
        print(f"{scheme:14} {len(pairs)} tried, {report[scheme]['valid']} valid, {len(differ)} differ ({len(missed)} valid there only) {state}", differ[:3] if differ else "")
    audited = set(SCHEMES)
    print("not in python-stdnum:", " ".join(sorted(ours - audited)))
    with open("audit.json", "w") as out:
        json.dump(report, out, indent=1)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
