//! Written by hand: addresses of seventeen countries, with every part that may follow or precede the street.

use super::super::super::Address;
use crate::testing::texts;

fn found(text: &str) -> Vec<String> {
    static ALL: std::sync::LazyLock<Address> = std::sync::LazyLock::new(|| Address::new().unwrap());
    texts(text, |scan, hits| ALL.scan(scan, hits))
}

#[test]
fn whole_addresses_of_many_countries() {
    let mut wrong = Vec::new();
    for address in [
        // Algeria
        "27, rue Ahmed Bey, 25000 Constantine",
        "Résidence les Pins, bloc A n° 3, 31000 Oran",
        "14 boulevard de l'ALN, Béjaïa 06000",
        "Hai Salam, villa n° 45, Tlemcen 13000",
        "Cité des 200 logements, bloc B n° 14, 25000 Constantine",
        // Vietnam
        "Xóm 4, xã Nghi Kim, thành phố Vinh, Nghệ An",
        "Thôn Hạ, xã Tân Lập, huyện Đan Phượng, Hà Nội",
        "Số 9 ngõ 120, phố Trần Cung, quận Bắc Từ Liêm, Hà Nội",
        "78 đường Hùng Vương, thị trấn Sa Pa, Lào Cai",
        "Khóm 2, phường 5, thành phố Cà Mau",
        "Tổ 7, ấp Bình Hòa, xã Mỹ Phong, tỉnh Tiền Giang",
        // Georgia
        "თბილისი, აბაშიძის ქუჩა 18, ბინა 4",
        "0171 თბილისი, ნუცუბიძის ქუჩა 9",
        "ქუთაისი, წერეთლის ქუჩა 21",
        "ბათუმი, გორგილაძის ქ. 50",
        "ვაკის რაიონი, პალიაშვილის ქუჩა 33, თბილისი",
        "დიღმის მასივი, V კვარტალი, კორპუსი 7, ბინა 31",
        // Iran
        "اصفهان، خیابان چهارباغ، کوچه ۵، پلاک ۲۰",
        "شیراز، بلوار زند، پلاک ۱۵، طبقه ۲",
        "تهران، میدان ونک، خیابان ملاصدرا، پلاک ۴۰، واحد ۶",
        "خیابان سعدی، پلاک ۷، تبریز",
        "مشهد، بلوار وکیل آباد، پلاک ۱۰۲",
        // Bangladesh
        "গ্রাম: শ্রীপুর, ডাকঘর: মাওনা, জেলা: গাজীপুর",
        "বাড়ি ৭, রোড ১১, বনানী, ঢাকা ১২১৩",
        "হোল্ডিং নং ২২, স্টেশন রোড, রাজশাহী",
        "ফ্ল্যাট ৩, বাড়ি ১৯, সেক্টর ৪, উত্তরা, ঢাকা-১২৩০",
        "১২/এ, নবাব সিরাজউদ্দৌলা সড়ক, চট্টগ্রাম",
        // The Philippines
        "Unit 7B Tower 1, Pacific Plaza, Ayala Avenue, Makati City 1226",
        "Blk 12 Lot 3, Narra St., Brgy. San Roque, Antipolo City",
        "45 Mabini Street, Brgy. Poblacion, Davao City",
        "88 Osmeña Boulevard, Cebu City 6000",
        "Purok 3, Barangay Malinao, Koronadal City",
        // Hungary
        "1117 Budapest, Bartók Béla út 44. 2. em. 7.",
        "6724 Szeged, Rókusi krt. 8.",
        "4024 Debrecen, Piac u. 20. II. em. 3.",
        "Pécs, Király utca 15., 7621",
        "9021 Győr, Baross Gábor út 5.",
        "1052 Budapest, Váci utca 12. 3. em. 4.",
        // Iceland
        "Strandgata 9, 600 Akureyri",
        "Austurvegur 3, 800 Selfoss",
        "Bankastræti 7, 101 Reykjavík",
        "Hafnargata 30, 230 Keflavík",
        "Laugavegur 12, 101 Reykjavík",
        // Kazakhstan
        "Шымкент қ., Тәуке хан даңғылы, 27 үй, 14 пәтер",
        "Астана, Мәңгілік ел даңғылы 8",
        "010000, Астана, Кенесары көшесі 40",
        "Қарағанды қаласы, Бұқар жырау даңғылы 53, 2 пәтер",
        "Ақтөбе облысы, Хромтау ауданы, Жеңіс көшесі 6",
        // Turkey
        "Moda Cad. No: 21 D: 8, 34710 Kadıköy/İstanbul",
        "Gazi Bulvarı No:63, Konak, İzmir",
        "Yeni Mah. Lale Sok. No: 4 Kat: 2 Daire: 5 Çankaya/Ankara",
        "Tunalı Hilmi Caddesi No 90/4 Çankaya Ankara",
        "Cumhuriyet Mahallesi, Gül Sokak No: 11, 16000 Bursa",
        // Indonesia
        "Desa Sukamaju, Kecamatan Cibinong, Kabupaten Bogor",
        "Jl. Diponegoro No. 45, Kel. Darmo, Kec. Wonokromo, Surabaya 60241",
        "Jalan Merdeka 12, Bandung",
        "Dusun Krajan RT 02 RW 05, Desa Wonosari, Kabupaten Klaten",
        "Jl. Kenanga Blok C No. 8, Depok 16412",
        // Morocco
        "12, rue Ibn Batouta, 20000 Casablanca",
        "Résidence Yasmine, imm. B, appt 9, avenue des FAR, Rabat",
        "Lotissement Al Wifaq, n° 33, 12000 Témara",
        "5 bis, boulevard Zerktouni, Marrakech",
        "Derb Sidi Bouloukat, n° 17, Marrakech",
        // North Macedonia
        "ул. Македонија бр. 14, 1000 Скопје",
        "бул. Партизански Одреди 62, Скопје",
        "ул. Илинденска 5, 1200 Тетово",
        "ул. Гоце Делчев бр. 3 стан 8, Битола",
        "Скопје, ул. Вардарска 21",
        // India
        "12, காமராஜர் தெரு, மதுரை 625001",
        "फ्लैट नं 8, शिवाजी नगर, पुणे 411005",
        "घर क्र. 22, टिळक रोड, पुणे",
        "मकान नंबर 45, गांधी नगर, जयपुर",
        "எண் 7, பாரதி சாலை, கோவை",
        // Serbia
        "Булевар ослобођења 12, 21000 Нови Сад",
        "Ulica kneza Miloša 20, Beograd",
        "Cara Dušana 14, 18000 Niš",
        "Кнез Михаилова улица 6, Београд",
        "Bulevar kralja Aleksandra 73, 11000 Beograd",
        // Germany and others
        "Hauptstraße 12, Potsdam",
        "Lindenweg 3a, 2. Stock, 50667 Köln",
        "12 Elm Street, Boston",
        "Via Roma 12, Firenze",
        "Calle Mayor 5, 3º A, Madrid",
    ] {
        for text in [format!("We deliver it to: {address}\nThank you."), format!("{address}\n\n")] {
            let got = found(&text);
            if got != [address] {
                wrong.push(format!("{text:?}: {got:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Wards of Nepal are mentioned in news as often as in addresses: only a cue makes them one.
#[test]
fn wards_need_a_cue() {
    for address in [
        "वडा नं. ४, पोखरा",
        "घर नं. ८१, कुमारी मार्ग, ललितपुर",
        "वडा नं. ९, भरतपुर, चितवन",
        "घर नं. ३, शान्ति टोल, काठमाडौँ ४४६००",
        "वडा नं ११, बुटवल, रुपन्देही",
    ] {
        assert_eq!(found(&format!("Address: {address}\n")), [address]);
    }
    assert!(found("वडा नं. ४, पोखरा").is_empty());
}

#[test]
fn what_follows_in_the_sentence_stays() {
    for (text, address) in [
        ("He left Laugavegur 12, 101 Reykjavík, in 2019.", "Laugavegur 12, 101 Reykjavík"),
        ("12 Elm Street, Anna said, is hers.", "12 Elm Street"),
        ("Hauptstraße 12, Potsdam. Anna kommt.", "Hauptstraße 12, Potsdam"),
        (
            "Please send it to 45 Mabini Street, Brgy. Poblacion, Davao City before Friday.",
            "45 Mabini Street, Brgy. Poblacion, Davao City",
        ),
        ("Nakatira ako sa 88 Osmeña Boulevard, Cebu City mula noong Mayo.", "88 Osmeña Boulevard, Cebu City"),
        ("Envoyez-le à Béjaïa, rue de la Liberté 7 avant vendredi.", "Béjaïa, rue de la Liberté 7"),
        ("Hauptstraße 12\nAnna Schmidt", "Hauptstraße 12"),
        ("Name: Anna Kiss, Rókusi krt. 8, 6724 Szeged", "Rókusi krt. 8, 6724 Szeged"),
        ("თბილისი, აბაშიძის ქუჩა 18, ბინა 4\nტელეფონი 5", "თბილისი, აბაშიძის ქუჩა 18, ბინა 4"),
        (
            "Barbaros Bulvarı No:145, Beşiktaş, İstanbul\nTel: 5",
            "Barbaros Bulvarı No:145, Beşiktaş, İstanbul",
        ),
    ] {
        assert_eq!(found(text), [address], "{text:?}");
    }
}

#[test]
fn places_dates_and_prices() {
    let mut wrong = Vec::new();
    for text in [
        "We met Anna at noon. Budapest, Vienna and Prague are nice.",
        "Budapest, 12 May 2019. Dear Anna",
        "Năm 2019, xã hội có 12 thay đổi.",
        "Tỉnh Bình Dương có 2.500.000 dân.",
        "Các tỉnh Nghệ An, Hà Tĩnh có mưa lớn 200 mm.",
        "Gubernur Jawa Barat, Bandung, 12 Mei 2020.",
        "Kecamatan Cibinong dan Kabupaten Bogor dilanda banjir.",
        "2019 წელს თბილისში 120 კაცი იყო, ფასი 45 ლარი.",
        "ფასი 5 ლარი, ბინა კარგია.",
        "قیمت ۱۲۰۰ تومان، تاریخ ۱۲ مهر ۱۳۹۹.",
        "ঢাকা, ১২ মার্চ ২০২০: দাম ৫০০ টাকা।",
        "জেলা: ৬৪টি, উপজেলা: ৪৯৫টি।",
        "काठमाडौँ, १२ मार्च २०२०। मूल्य ५०० रुपैयाँ।",
        "2020. március 5. Budapest, 12 fok.",
        "A 3. em. nagyon szép, 12 szoba.",
        "Reykjavík, 12. maí 2020. Verð 4500 krónur.",
        "Алматы, 2019 жылғы 12 мамыр. Бағасы 5000 теңге.",
        "Istanbul, 12 Mayıs 2020. Fiyat 450 TL, KDV dahil.",
        "Alger, le 12 mars 2020. Prix: 4500 DA, TVA comprise.",
        "La cité compte 200 logements, bloc par bloc.",
        "Manila, 12 March 2020. Price: 450 pesos, Makati.",
        "zone: 5, sector: 12, district: 3",
        "Anna, 12 Jahre, Berlin.",
        "Скопје, 12 март 2020. Цена 450 денари.",
        "மதுரை, 12 மார்ச் 2020. விலை 450 ரூபாய்.",
    ] {
        let got = found(text);
        if !got.is_empty() {
            wrong.push(format!("{text:?}: {got:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Twice the text takes about twice the time: every address looks at a bounded number of words.
#[test]
fn long_lists_of_parts_are_linear() {
    let time = |n: usize| {
        let text = "Hauptstraße 12, xã Hòa Phú, huyện Hòa Vang, Đà Nẵng 5, ".repeat(n);
        let start = std::time::Instant::now();
        assert!(!found(&text).is_empty());
        start.elapsed().as_secs_f64()
    };
    time(200);
    let (once, more) = (time(500), time(4000));
    assert!(more < once * 8.0 * 4.0 + 0.05, "{once} s, eight times the text {more} s");
}
