use super::*;
use crate::testing::texts;

fn found(text: &str) -> Vec<String> {
    static ALL: std::sync::LazyLock<Address> = std::sync::LazyLock::new(|| Address::new().unwrap());
    texts(text, |s, h| ALL.scan(s, h))
}

#[test]
fn streets_of_many_countries() {
    for address in [
        "12 Elm Street",
        "221B Baker Street",
        "1600 Pennsylvania Avenue NW",
        "350 5th Ave., Apt. 3",
        "742 Evergreen Terrace\nSpringfield, IL 62704",
        "10 Downing Street, London SW1A 2AA",
        "4 Privet Drive\nLittle Whinging",
        "1 Infinite Loop, Cupertino, CA 95014",
        "12, rue de la Paix\n75002 Paris",
        "5 bis avenue des Champs-Élysées",
        "Via Roma 12",
        "Via Giuseppe Verdi, 3 Appartamento 5\n20121, Milano (MI)",
        "Calle de Alcalá 45, 28014 Madrid",
        "Rua das Flores, 123",
        "ul. Długa 3/5\n31-146 Kraków",
        "ул. Ленина, д. 5",
        "г. Москва, ул. Тверская, д. 7",
        "Hauptstraße 12",
        "Karl-Marx-Str. 5, 10115 Berlin",
        "Prinses Beatrixlaan 3",
        "Kerkstraat 15a\n1234 AB Amsterdam",
        "Storgatan 3, 111 22 Stockholm",
        "Mannerheimintie 5 A",
        "Kossuth Lajos utca 5",
        "Atatürk Caddesi No: 5",
        "Jl. Sudirman No. 12",
        "PO Box 123, Springfield, IL 62704",
        "PSC 1234, Box 5678\nAPO AE 09123",
        "Springfield, IL 62704",
        "北京市朝阳区建国路88号",
        "東京都千代田区丸の内1-2-3",
        "서울특별시 강남구 테헤란로 123",
        "110 台北市信義區信義路5段7號之2",
        "Carrera 7 # 32-16",
        "Calle 100 # 8A-55 Sur\n110111\nBogotá, Cundinamarca",
        "Rua Augusta, S/N",
        "Kossuth utca 8.\nH-1055 Budapest",
        "24 Dame Street D02 X285 Dublin",
        "1182 rue Sherbrooke Apt. 209\nMontréal, QC H2X 1Y4",
        "Kerkstraat 41\n3060\nBertem",
        "Ida Ekmanin polku 33",
        "Strada Lunga Nr. 43 Bl. 88  Sc. 2 Ap. 95",
    ] {
        let text = format!("{address}.");
        let got = found(&text);
        let wanted = address.split('\n').next().unwrap();
        assert!(
            // A Hungarian house number takes its dot along.
            got.iter()
                .any(|g| g.trim_end_matches('.') == address || (address.contains("Whinging") && g == wanted)),
            "{address:?}: {got:?}"
        );
    }
}

#[test]
fn addresses_by_their_surroundings() {
    assert_eq!(found("Address: Dlouhá 123"), ["Dlouhá 123"]);
    assert_eq!(found("I live at 12 Foo Bar."), ["12 Foo Bar"]);
    assert_eq!(found("Bývam na adrese Nova 651."), ["Nova 651"]);
    assert_eq!(found("Dlouhá 123\n110 00 Praha"), ["Dlouhá 123\n110 00 Praha"]);
    assert_eq!(found("3 Jones mews\nSmithtown\nSW1A 2AB"), ["3 Jones mews\nSmithtown\nSW1A 2AB"]);
}

#[test]
fn ordinary_text() {
    for text in [
        "In 2019 Apple opened a store",
        "It took 12 minutes to walk the street",
        "Version 12 Beta",
        "We sold 300 Windows licences",
        "the 42 Best Java libraries",
        "page 12 Chapter 3",
        "On March 12 Anna left",
        "am Montag 12 Uhr",
        "HTTP 200 OK",
        "let x = 12; // Some Lock",
        "3 Python views",
        "im Jahr 2019",
        "for i in 0 to 10 Do",
        "the fix went into A24 R940 today",
        "ratio S/N of 12",
        "Figure 3 Results",
        "it is located at 5 GHz",
        "pick me up at 5 PM",
        "My new place is great, Room 12",
    ] {
        assert!(found(text).is_empty(), "{text}: {:?}", found(text));
    }
}
