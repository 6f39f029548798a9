//! Latin letters, other continents: South-East Asia, Africa, the Americas, India and the Philippines in English.

use super::roles::{Roles, Row};

const WEAK_BEFORE: Roles = Roles::BEFORE.with(Roles::WEAK);
const WEAK_AFTER: Roles = Roles::AFTER.with(Roles::WEAK);

pub(super) const ROWS: &[Row] = &[
    // Vietnamese
    (Roles::BEFORE, "đường|phố|ngõ|ngách|hẻm|kiệt|lộ|quốc|đại|đ|hẽm"),
    (Roles::LABEL, "số|nhà|sn"),
    (Roles::UNIT, "tầng|phòng|căn|tòa|lầu|lô|chung|block"),
    (
        Roles::PLACE_BEFORE,
        "phường|quận|huyện|xã|thôn|ấp|tổ|khu|kp|tp|thành|tỉnh|tx|thị|p|q|xóm|làng|khóm|kđt|buôn",
    ),
    (Roles::SMALL, "thôn|ấp|xóm|khóm|buôn|xã|tổ|phường"),
    (Roles::STOP, "tôi|saya|mimi|kami|chúng"),
    // Indonesian and Malay
    (
        Roles::BEFORE,
        "jalan|jl|jln|gang|gg|lorong|lrg|lebuh|lebuhraya|persiaran|psn|lengkok|solok|lingkaran|\
         tingkat|persint",
    ),
    (Roles::LABEL, "nomor|no|bil"),
    (Roles::UNIT, "blok|lantai|unit|tingkat|kav|kavling|aras|ruko"),
    (
        Roles::PLACE_BEFORE,
        "rt|rw|kelurahan|kel|kecamatan|kec|kabupaten|kab|kota|desa|ds|dusun|provinsi|prov|taman|\
         kampung|kg|kampong|bandar|seksyen|mukim|daerah|perumahan|komplek|dukuh|banjar",
    ),
    (Roles::SMALL, "desa|dusun|kampung|kelurahan|dukuh|banjar|rt"),
    // The Philippines
    (Roles::SMALL, "barangay|brgy|bgy|purok|sitio"),
    (Roles::BEFORE, "kalye|daang|abenida"),
    (Roles::PLACE_BEFORE, "barangay|brgy|bgy|purok|sitio|poblacion|lungsod|lalawigan|bayan"),
    (
        Roles::PLACE_AFTER,
        "village|subdivision|subd|subdv|heights|compound|barangay|city|municipality|province",
    ),
    (Roles::UNIT, "blk|block|lot|phase|ph|unit|floor|flr|rm|room|bldg|tower|penthouse"),
    // India, Pakistan, Bangladesh, Sri Lanka in English
    (
        Roles::AFTER,
        "marg|nagar|chowk|gali|gully|salai|theru|sarani|bazar|bazaar|sadak|mawatha|vidiya|sarak|\
         galli|puram|vihar",
    ),
    (
        WEAK_AFTER,
        "colony|street|road|lane|cross|main|layout|enclave|ganj|extension|circle|society|apartments|\
         residency",
    ),
    (Roles::LABEL, "house|door|plot|flat|shop|holding|makan|quarter|qtr|hno|dno"),
    (Roles::UNIT, "floor|flat|block|wing|tower|phase|sector|stage|ward|plot"),
    (Roles::PLACE_AFTER, "district|dist|taluk|taluka|tehsil|mandal|thana|upazila|upazilla|division|dt|cantt"),
    (
        Roles::PLACE_BEFORE,
        "district|dist|taluk|tehsil|mandal|village|vill|po|ps|thana|upazila|mouza|\
         ward",
    ),
    (Roles::CODE, "pin|pincode|postcode|postal|zip|gpo|cp|cep|plz|zipcode|kode|poskod"),
    // Africa: Swahili, Hausa, Yoruba, Zulu, Xhosa, Afrikaans, English
    (Roles::BEFORE, "barabara|mtaa|njia|titi"),
    (Roles::AFTER, "straat|rylaan|laan|singel"),
    (
        Roles::PLACE_BEFORE,
        "kata|wilaya|mkoa|tarafa|kijiji|quartier|arrondissement|commune|cité|secteur|zone|sous",
    ),
    // French of the Maghreb and West Africa
    (
        Roles::BEFORE,
        "rue|avenue|av|boulevard|bd|impasse|chemin|hai|haï|cité|lotissement|résidence|derb|zankat|\
         zenkat|sharia|chaussée|coopérative|douar|ruelle|lotissements",
    ),
    (WEAK_BEFORE, "place|route|passage|villa|residence|cooperative|quartier|lot"),
    (
        Roles::UNIT,
        "logements|logts|lgts|bt|bât|bâtiment|immeuble|imm|appt|appartement|étage|villa|porte|local|escalier",
    ),
    (Roles::LABEL, "n|nº|numéro|num"),
    (Roles::PLACE_BEFORE, "wilaya|daïra|daira|commune|préfecture|province|bp"),
    // Latin America
    (
        Roles::BEFORE,
        "calle|avenida|av|avda|jirón|jr|pasaje|psje|carrera|cra|cl|diagonal|transversal|autopista|\
         calzada|bulevar|boulevard|prolongación|privada|cerrada|andador|callejón|malecón|alameda|\
         vereda|circunvalación|óvalo|camino|carretera|ruta|esquina",
    ),
    (Roles::LABEL, "número|núm|nro|num|casa|solar|parcela|km"),
    (
        Roles::UNIT,
        "bodega|consultorio|depto|dpto|apto|piso|torre|manzana|mz|mza|lote|lt|interior|int|edificio|edif|oficina|of|\
         bloque|local|quinta|villa",
    ),
    (
        Roles::PLACE_BEFORE,
        "colonia|col|barrio|bo|urbanización|urb|fraccionamiento|fracc|sector|delegación|alcaldía|\
         municipio|mpio|residencial|cantón|distrito|reparto|comuna|partido|localidad|parroquia|\
         corregimiento|vereda|ciudadela|cdla|zona|provincia|depto",
    ),
    // Brazil and Portugal
    (
        Roles::BEFORE,
        "rua|r|travessa|tv|praça|alameda|estrada|rodovia|largo|beco|ladeira|calçada|praceta|azinhaga|\
         viela|quadra",
    ),
    (
        Roles::UNIT,
        "apto|ap|bloco|bl|sala|casa|cj|conjunto|conj|lote|quadra|qd|lt|andar|fração|esq|dto|loja|\
         fundos|sobreloja",
    ),
    (
        Roles::PLACE_BEFORE,
        "bairro|jardim|jd|vila|vl|freguesia|concelho|distrito|parque|pq|setor|núcleo|loteamento",
    ),
    (WEAK_BEFORE, "rod|via"),
];
