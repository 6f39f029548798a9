//! Latin letters, Europe: words that the grammar of the larger languages does not hold.

use super::roles::{Roles, Row};

const WEAK_AFTER: Roles = Roles::AFTER.with(Roles::WEAK);

pub(super) const ROWS: &[Row] = &[
    // Albanian
    (Roles::BEFORE, "rruga|rrugë|rr|bulevardi|blv|sheshi|rrugica|rrugicë|lagjja|lagja"),
    (Roles::LABEL, "nr|numri"),
    (Roles::UNIT, "pallati|hyrja|kati|apartamenti|shkalla|godina"),
    (Roles::PLACE_BEFORE, "fshati|qyteti|komuna|bashkia|qarku"),
    // Slovenian, Croatian, Serbian and Bosnian in Latin letters
    (
        Roles::AFTER,
        "ulica|cesta|ul|ulici|cesti|drevored|steza|nabrežje|avenija|bulevar|bul|šetalište|prilaz|\
         obala",
    ),
    (WEAK_AFTER, "pot|trg|put|prolaz|vrt|brdo|naselje|gaj|log"),
    (Roles::BEFORE, "ulica|ul|cesta|bulevar|bul|trg|avenija|prilaz|šetalište|obala|aleja|ulici|kej"),
    (Roles::LABEL, "br|broj|št|hišna|kbr|kućni"),
    (Roles::UNIT, "stan|ulaz|kat|sprat|stanovanje|vhod|nadstropje|zgrada|lamela"),
    (Roles::PLACE_BEFORE, "općina|opština|občina|selo|grad|naselje|mjesto|poštanski|pošta"),
    (Roles::PLACE_AFTER, "županija|kanton|okrug"),
    (Roles::PARTICLE, "v|na|pri|pod|nad|ob|za|u|kod|do|od|k|ke|ve|při|przy|w|z|ze|s|və"),
    (Roles::PARTICLE, "kneza|kralja|cara|vojvode|svetog|svete|maršala|generala|doktora|bana"),
    (Roles::STOP, "mən|jaz|jag|jeg|unë|ég|biz|bən"),
    (
        Roles::LIVES,
        "ünvanında|ünvanına|ünvanda|adresinde|adresine|adresinden|oturuyorum|yaşıyorum|yaşayıram|\
         alatt|címen|címre",
    ),
    // Czech and Slovak
    (
        Roles::BEFORE,
        "ulice|ulica|ul|náměstí|nám|námestie|třída|tř|trieda|nábřeží|nábr|sídliště|sídlisko|bulvár",
    ),
    (Roles::AFTER, "ulice|ulica|náměstí|námestie|třída|trieda|nábřeží|nábrežie|cesta|sídlisko"),
    (Roles::LABEL, "č|čp|čo|ev|číslo|čd|súpisné|popisné"),
    (Roles::UNIT, "byt|poschodie|patro|vchod|blok"),
    (Roles::PLACE_BEFORE, "okres|okr|obec|psč"),
    // Polish
    (
        Roles::BEFORE,
        "ulica|ulicy|ul|aleja|aleje|alei|al|plac|placu|pl|osiedle|osiedlu|os|rondo|skwer|bulwar|\
         szosa|zaułek|rynek",
    ),
    (Roles::UNIT, "m|lok|lokal|mieszkania|mieszkanie|klatka|piętro|blok"),
    (Roles::PLACE_BEFORE, "gmina|gm|powiat|pow|województwo|woj|wieś|poczta|miasto"),
    // Hungarian
    (
        Roles::AFTER,
        "utca|utcája|u|út|útja|tér|tere|körút|krt|köz|sétány|fasor|sor|rakpart|lakótelep|dűlő|lejtő|\
         liget|udvar",
    ),
    (Roles::UNIT, "emelet|em|ajtó|lépcsőház|lph|fsz|ép|épület|hrsz"),
    (Roles::PLACE_AFTER, "kerület|megye"),
    // Romanian and Moldovan
    (
        Roles::BEFORE,
        "strada|str|bulevardul|bd|bdul|aleea|calea|șoseaua|șos|piața|intrarea|splaiul|drumul|\
         fundătura|prelungirea|stradela|pasajul|cartierul",
    ),
    (Roles::UNIT, "bl|bloc|sc|scara|et|etaj|ap|apartament|parter|interfon|camera|corp"),
    (
        Roles::PLACE_BEFORE,
        "județul|jud|județ|comuna|com|satul|sat|orașul|oraș|municipiul|mun|sectorul|sector|\
         localitatea|loc|raionul",
    ),
    // Baltic
    (
        Roles::AFTER,
        "gatvė|gatvės|gatvėje|g|prospektas|pr|alėja|plentas|pl|skersgatvis|skg|takas|kelias|aikštė",
    ),
    (
        Roles::AFTER,
        "iela|ielā|prospekts|bulvāris|bulv|gatve|šoseja|laukums|aleja|līnija|dambis|krastmala|ceļš",
    ),
    (Roles::UNIT, "butas|bt|b|k|korp|korpuss|dz|dzīvoklis|dzīv"),
    (
        Roles::PLACE_AFTER,
        "rajonas|raj|r|apskritis|savivaldybė|sav|seniūnija|sen|kaimas|km|miestelis|novads|nov|\
         pagasts|pag|apgabals|ciems",
    ),
    (Roles::AFTER, "tänav|tn|tänaval|maantee|mnt|puiestee|pst|tee|põik|allee|väljak"),
    (WEAK_AFTER, "plats|kallas|rand"),
    (Roles::UNIT, "krt|korter|korpus|trepikoda|korrus"),
    (Roles::PLACE_AFTER, "maakond|vald|küla|alevik|alev|linn"),
    // Nordic
    (
        Roles::AFTER,
        "gata|gatan|gate|gade|vägen|veien|vegen|vej|vei|väg|allé|allén|plads|plass|plan|torg|torv|\
         torvet|stræde",
    ),
    (Roles::AFTER, "götu|gata|vegur|vegi|stígur|braut|stræti|sund|hlíð|bakki|holt|tún"),
    (Roles::AFTER, "katu|tie|kuja|polku|kaari|raitti|puistikko|tori|aukio|ranta|väylä|bulevardi"),
    (Roles::UNIT, "lgh|tv|th|mf|sal|kld|vån|leil|rappu|huoneisto|hæð|íbúð|bostad|as|huon"),
    // Dutch and Flemish
    (
        Roles::AFTER,
        "straat|laan|weg|plein|gracht|kade|singel|dijk|steeg|dreef|baan|lei|vest|steenweg|stwg|hof|\
         pad",
    ),
    (Roles::UNIT, "bus|verdieping|verd|etage|toevoeging|huis"),
    // Maltese
    (Roles::BEFORE, "triq|trejqet|pjazza|misraħ|sqaq|vjal|telgħa|xatt|wesgħa|vjalett"),
    // Irish, Scottish Gaelic and Welsh
    (Roles::BEFORE, "sráid|bóthar|ascaill|céide|lána|plás|cearnóg|rathad|heol|ffordd|stryd|lôn|sràid"),
    (Roles::PLACE_BEFORE, "contae|baile"),
    // Basque, Catalan, Galician
    (Roles::AFTER, "kalea|etorbidea|plaza|hiribidea|bidea"),
    (Roles::BEFORE, "carrer|passeig|plaça|avinguda|avda|rambla|travessera|ronda|passatge|rúa|praza|camiño"),
    (Roles::UNIT, "pis|porta|escala|baixos|ezk|esk|solairua"),
    // Turkish, Azerbaijani, Turkmen and Uzbek in Latin letters
    (
        Roles::AFTER,
        "caddesi|cad|cd|sokak|sokağı|sok|sk|bulvarı|blv|bulv|meydanı|yolu|çıkmazı|küme|geçidi|küçəsi|\
         küç|prospekti|pr|xiyabanı|döngəsi|dalanı|dal|şossesi|köçesi|şaýoly|koʻchasi|kochasi|shoh|\
         xiyoboni",
    ),
    (Roles::LABEL, "no|numara|bina|ev|mənzil|b|uy|jaý"),
    (Roles::UNIT, "m|mənz|daire|d|kat|blok|apt|apartmanı|giriş|mərtəbə|otaq|xonadon|sitesi"),
    (
        Roles::PLACE_AFTER,
        "mahallesi|mah|mh|köyü|ilçesi|ili|şəhəri|ş|rayonu|ray|kəndi|k|qəsəbəsi|qəs|mikrorayonu|mkr|\
         nahiyəsi|tumani|viloyati|shahri|şäheri|etraby|welaýaty|mahalla|mahallasi",
    ),
];
