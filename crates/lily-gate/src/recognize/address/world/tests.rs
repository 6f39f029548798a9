use super::{roles::TABLES, *};
use crate::{cues::Cues, testing::texts};

fn found(text: &str) -> Vec<String> {
    static ALL: std::sync::LazyLock<(World, Lists)> =
        std::sync::LazyLock::new(|| (World::new(), Lists::new()));
    texts(text, |scan, hits| ALL.0.scan(scan, &ALL.1, hits))
}

#[test]
fn every_word_of_the_tables_is_one_token() {
    let cues = Cues::new().unwrap();
    for (_, words) in TABLES.iter().copied().flatten() {
        for word in words.split('|') {
            let scan = Scan::new(word, &cues);
            assert!(scan.tokens.len() == 1 && !scan.tokens[0].has_digit, "{word:?} is never looked up");
            assert_eq!(word, word.to_lowercase(), "{word:?} is looked up in lower case");
        }
    }
}

#[test]
fn whole_addresses_in_the_order_of_their_country() {
    let mut wrong = Vec::new();
    for address in [
        // Azerbaijani, Turkish
        "Göyçay rayonu, Xəlil kəndi, Nizami küçəsi, b. 9, m. 4",
        "Bakı ş., 28 May prospekti, b. 6, m. 8",
        // Slovenian, Croatian, Czech
        "Slovenska cesta 12a\n1000 Ljubljana",
        "Na gmajni 34\n8235 Ruše",
        "Ilica ulica 5, 10000 Zagreb",
        // Greek
        "Λεωφόρος Αλεξάνδρας 18,\n114 73 Αθήνα",
        "οδός Ερμού 5, διαμ. 3",
        // Russian, Ukrainian, Bulgarian, Macedonian, Serbian, Kazakh
        "г. Казань, ул. Баумана, д. 5, кв. 12",
        "вул. Хрещатик, буд. 22 кв. 3, Київ, 01001",
        "шосе Героїв оборони Одеси, буд. 361, Курахове, 52100",
        "бул. Витоша 15, ет. 2, ап. 4, 1000 София",
        "ул. Партизанска бр. 8, 1000 Скопје",
        "Булевар краља Александра 73, 11000 Београд",
        "Абай даңғылы 10, Алматы қаласы",
        // Georgian, Armenian
        "რუსთაველის გამზირი 12, თბილისი 0108",
        "ք. Երևան, 0010, Աբովյան 12, բն. 5",
        // Hebrew, Arabic, Persian, Urdu
        "רחוב הרצל 12, תל אביב, 6123456",
        "شارع التحرير رقم 15، الطابق 3، القاهرة 11511",
        "١٢ شارع النيل، القاهرة ١١٥١١",
        "خیابان ولیعصر، کوچه بهار، پلاک 12، واحد 3",
        // Hindi, Marathi, Bengali, Tamil
        "मकान नं 12, गांधी मार्ग\nनई दिल्ली 110001",
        "45/2 तमांग\nअलांग 787528",
        "বাড়ি ৫৬, গুলশান এভিনিউ, ঢাকা ১২১২",
        "12 காந்தி தெரு, சென்னை 600001",
        // Thai
        "123/45 ถนนสุขุมวิท แขวงคลองเตย เขตคลองเตย กรุงเทพมหานคร 10110",
        "20 ถ.ศรีเผด็จ ต.บึงบา อ.นาหว้า จ.จันทบุรี 46090",
        // Vietnamese, Indonesian
        "Số 12 đường Nguyễn Trãi, Phường 3, Quận 5, TP. Hồ Chí Minh",
        "Jl. Sudirman No. 12, RT 3, Kec. Menteng, Jakarta 10310",
        // Baltic
        "Gedimino pr. 9, LT-01103 Vilnius",
        "Brīvības iela 55, LV-1010 Rīga",
        "Narva maantee 7, 10117 Tallinn",
        "Calle 32 48, Bodega 359\n057363\nSan Jerónimo, Antioquia",
        // Maltese, Albanian
        "Triq Manuel Dimech 12, SLM 1055",
        "Rruga Bardhyl 5, Pallati 3, Kati 2",
    ] {
        let got = found(&format!("{address}\n\n"));
        if got != [address] {
            wrong.push(format!("{address:?}: {got:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_words_around_decide() {
    assert_eq!(found("See you at הרצל 5."), ["הרצל 5"]);
    assert_eq!(found("Ünvan: 3 Z.BÜNYADOV\n"), ["3 Z.BÜNYADOV"]);
    assert_eq!(found("Адреса: Байкал 308"), ["Байкал 308"]);
    assert_eq!(found("मैं 59 यादव में रहता हूँ।"), ["59 यादव"]);
    assert_eq!(found("Mən Nizami 7 ünvanında yaşayıram."), ["Nizami 7"]);
    // A cue makes a street without a number an address.
    assert_eq!(found("Адреса: вулиця Шевченка"), ["вулиця Шевченка"]);
    assert!(found("У нас є вулиця Шевченка").is_empty());
}

#[test]
fn sentences_with_numbers() {
    let mut wrong = Vec::new();
    for text in [
        "Leta 2019 je mesto imelo 5400 prebivalcev.",
        "Na cesti je bilo 12 avtomobilov.",
        "Το 2019 η πόλη είχε 45 σχολεία. Κεφάλαιο 5, σελίδα 12.",
        "У 2020 році на вулиці Хрещатик 25 людей вийшли з дому.",
        "На улице Ленина 5 человек ждали автобус, 12 ушли.",
        "Матч закончился 2:1, 45 тысяч зрителей.",
        "בשנת 2019 היו בעיר 5400 תושבים, המחיר 12 שקלים.",
        "في عام 2019 كان عدد السكان 5400 نسمة. الفصل 5، الصفحة 12.",
        "در سال 1398 شهر 5400 نفر جمعیت داشت.",
        "2019 में शहर की आबादी 540000 थी। इस सड़क पर 12 दुकानें हैं।",
        "২০১৯ সালে শহরে 540000 জন লোক ছিল।",
        "2019 ஆம் ஆண்டில் நகரத்தில் 540000 பேர் இருந்தனர்.",
        "2019 წელს ქალაქში 5400 კაცი ცხოვრობდა.",
        "2019 թվականին քաղաքն ուներ 5400 բնակիչ։",
        "บทที่ 28 หน้า 86 ถนนยาว 28 กิโลเมตร",
        "Năm 2019 thành phố có 5400 dân, con đường dài 12 km.",
        "Copyright 2017, 2018 The developers",
        "2018 Developers of the Rand project",
        "version 2.3.1 of 2020-01-05, 10:30 Berlin",
        "privada PKCS#8",
        "Ürün 5, fiyat 12 TL, 3. kat",
        "let ulica = 5; // Glavna 3",
    ] {
        let got = found(text);
        if !got.is_empty() {
            wrong.push(format!("{text:?}: {got:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
