//! Words of street addresses, by how they are ordered: lower case, without dots, separated by `|`.

/// Types after the name, number first ("12 Elm Street"): these alone tell.
pub(super) const SUFFIXES: &str = "\
    street|st|road|rd|avenue|ave|av|boulevard|blvd|lane|ln|drive|dr|court|ct|circle|cir|parkway|pkwy|\
    highway|hwy|terrace|ter|turnpike|tpke|crescent|cres|close|mews|alley|aly|bypass|expressway|expy|\
    freeway|fwy|motorway|cul-de-sac|esplanade|parade|gardens|grove|row|broadway|way|wy|square|sq|plaza|\
    plz|place|pl|trail|trl|loop|causeway|quay|wharf|promenade|viaduct|throughway|trafficway|stravenue|\
    skyway|roadway|marg|nagar|chowk|colony|jalan|lorong|rise|walk|gate|crossing|crossroad|pike|hollow|\
    heights";

/// Types that are also ordinary words: only capitalised, or before a line with city and postcode.
pub(super) const AMBIGUOUS_SUFFIXES: &str = "\
    branch|bridge|brook|brooks|burg|burgs|camp|canyon|cape|center|centers|centre|circles|cliff|cliffs|\
    club|common|commons|corner|corners|course|courts|cove|coves|creek|crest|curve|dale|dam|divide|\
    drives|estate|estates|extension|extensions|fall|falls|ferry|field|fields|flat|flats|ford|fords|\
    forest|forge|forges|fork|forks|fort|garden|gateway|glen|glens|green|greens|groves|harbor|harbors|\
    harbour|haven|hill|hills|inlet|island|islands|isle|junction|junctions|key|keys|knoll|knolls|lake|\
    lakes|land|landing|light|lights|loaf|lock|locks|lodge|mall|manor|manors|meadow|meadows|mill|mills|\
    mission|mount|mountain|mountains|neck|orchard|oval|overpass|park|parks|pass|passage|path|pine|\
    pines|plain|plains|point|points|port|ports|prairie|radial|ramp|ranch|rapid|rapids|rest|ridge|\
    ridges|river|roads|route|rue|run|shoal|shoals|shore|shores|spring|springs|spur|spurs|squares|\
    station|stream|streets|summit|trace|track|tunnel|underpass|union|unions|valley|valleys|via|view|\
    views|village|villages|ville|vista|walks|wall|ways|well|wells|market|hospital|yard|strand|circus|\
    bank|end|side|top|fairway|concourse|circuit|cutting|nook|outlook|reserve|retreat|right|siding|\
    waters|wood|woods|triangle|anchorage|approach|arcade|bay|beach|bend|block|bowl|brace|brae|break|\
    bluff|bluffs|bottom|bayou";

/// Types before the name with the number first ("12 rue de la Paix").
pub(super) const MIDDLE_TYPES: &str = "\
    rue|avenue|av|ave|boulevard|bd|bld|place|pl|chemin|ch|impasse|imp|allée|allee|allées|quai|route|\
    rte|cours|passage|square|sentier|ruelle|villa|faubourg|esplanade|promenade|montée|venelle|cité|\
    rond-point|calle|avenida|via|jalan|carrera";

/// Types before the name, the number last ("Via Roma 12", "ул. Ленина, д. 5").
pub(super) const PREFIXES: &str = "\
    via|viale|piazza|piazzale|corso|vicolo|largo|strada|contrada|borgo|lungomare|rotonda|incrocio|\
    canale|stretto|vico|salita|località|calle|c|avenida|avda|av|avd|paseo|plaza|pza|ronda|travesía|\
    travesia|camino|carrera|cuesta|glorieta|pasaje|rambla|urbanización|vía|callejón|alameda|acceso|\
    vial|pasadizo|cañada|carretera|ctra|calzada|boulevard|bulevar|blvd|privada|circuito|prolongación|\
    periférico|eje|diagonal|transversal|cl|cra|kr|cerrada|retorno|andador|viaducto|peatonal|\
    continuación|corredor|pasillo|rua|r|travessa|tv|praça|estrada|rodovia|rod|beco|viela|quadra|\
    ladeira|viaduto|parque|pátio|fazenda|favela|conjunto|colônia|condomínio|chácara|aeroporto|\
    esplanada|estação|feira|jardim|lago|lagoa|loteamento|morro|núcleo|passarela|recanto|residencial|\
    setor|sítio|trecho|trevo|vale|vereda|vila|campo|distrito|área|azinhaga|calçada|rossio|avenidas|\
    praceta|urbanizaçao|ul|ulica|al|aleja|aleje|pl|plac|os|osiedle|rondo|skwer|ulice|náměstí|nám|třída|\
    cesta|trg|avenija|put|prilaz|šetalište|nábřeží|str|bd|bulevardul|aleea|calea|șoseaua|piața|\
    intrarea|splaiul|drumul|bdul|ул|улица|пр|просп|проспект|пр-т|пер|переулок|бул|бульвар|наб|\
    набережная|ш|шоссе|пл|площадь|алл|аллея|пр-д|проезд|мкр|вул|вулиця|пров|провулок|площа|булевард|\
    οδός|οδ|λεωφόρος|λεωφ|πλατεία|jl|jalan|jln|gg|gang|lorong|persiaran|lebuh|đường|phố|ngõ|kalye|rue|\
    quai|chemin|impasse|allée|laan|plein|place|avenue|route|شارع|طريق|ش|رحوب|רחוב|רח|שדרות|שד|דרך|\
    خیابان|کوچه|بلوار|میدان|am|an der|straße|unter den|auf dem|im|zum|zur|alte|neue|bei";

/// Prefixes that begin ordinary phrases too: they count only when a line with postcode and city follows.
pub(super) const WEAK_PREFIXES: &str = "\
    am|an der|unter den|auf dem|im|zum|zur|alte|neue|bei|c|r|os|ch|pl|al|ш|ش|campo|vale|parque|área|\
    setor|lago|feira|circuito|eje|put|plaza|place|diagonal|corso|conjunto|trecho|vila|jardim|gang|gg|\
    rod|cl|canale|pr|пр|corredor|acceso|route|retorno|residencial|distrito|cesta|trg|cours|ronda";

/// Endings of one-word street names, the number after ("Hauptstraße 12", "Storgatan 3").
pub(super) const COMPOUNDS: &str = "\
    straße|strasse|str|weg|platz|allee|gasse|ring|damm|ufer|steig|stieg|pfad|chaussee|graben|markt|\
    promenade|zeile|winkel|kamp|twiete|redder|str.|straat|laan|plein|gracht|kade|singel|dijk|steeg|\
    dreef|baan|pad|boulevard|hof|gatan|vägen|gränd|stigen|torget|allén|backen|gata|väg|stig|torg|veien|\
    vegen|gate|vei|veg|plass|gade|vej|vænget|alle|allé|stræde|parken|bakken|toppen|haugen|svingen|\
    stien|torvet|vangen|marken|engen|lunden|tunet|lia|løkka|åsen|katu|tie|intie|antie|entie|ontie|äntie|öntie|kuja|polku|tori|kaari|rinne|\
    raitti|penger|väylä|rinteen|iela|gatvė|tänav|maantee|puiestee|vegur|vegi|stræti|stígur";

/// Types after the name with the number last ("Kossuth utca 5.", "Atatürk Cad. No: 5").
pub(super) const TRAILING_TYPES: &str = "\
    utca|út|u|útja|tér|tere|körút|krt|köz|sétány|fasor|sor|rakpart|lejtő|dűlő|sugárút|caddesi|cad|cd|\
    sokak|sokağı|sok|sk|bulvarı|blv|mahallesi|mah|meydanı|yolu|straße|strasse|str|weg|platz|allee|\
    gasse|ring|damm|ufer|straat|laan|plein|gracht|kade|gatan|vägen|gata|gate|gade|vej|vei|allé|katu|\
    tie|kuja|polku|puistotie|puistokatu|bulevardi|aukio|tänav|mnt|pst|iela|bulvāris|prospekts|gatvė|g|pr|al|ulica|cesta|ulice|třída|náměstí|улица|\
    проспект|переулок|бульвар|площадь|шоссе|набережная|проезд|аллея|вулиця|провулок|marg|road";

/// Parts of a building, after the number.
pub(super) const UNITS: &str = "\
    apt|apartment|suite|ste|unit|floor|fl|flat|room|rm|bldg|building|box|lot|studio|level|wohnung|whg|\
    top|stiege|tür|appartement|appt|bât|bâtiment|étage|appartamento|interno|int|piano|scala|piso|\
    puerta|portal|escalera|depto|departamento|dpto|apto|apartamento|bloco|bl|andar|sala|lote|bus|m|lok|\
    kv|кв|корп|к|стр|оф|офис|подъезд|этаж|lgh|vån|st|daire|kat|em|ajtó|byt|ap|sc|et|διαμ|d|no|nr|edif|\
    edificio|interior|urb|shop";

/// Small words inside street and city names.
pub(super) const PARTICLES: &str = "\
    de|la|le|les|du|des|del|della|delle|dei|degli|di|da|das|do|dos|van|von|der|den|het|the|of|in|on|\
    upon|under|und|e|y|et|l|d|st|ste|saint|sur|sous|en|lès|aux|au|am|an|im|bei|ob|лет|pod|nad|na|zu|zum|\
    zur|auf|dem|ter|ten|tot|el|los|las|san|santa|op|i|och|og|af|av|å|dr|mr|prof";

/// States and provinces whose codes stand between a city and its postcode.
pub(super) const STATES: &str = "\
    AL|AK|AZ|AR|CA|CO|CT|DE|FL|GA|HI|ID|IL|IN|IA|KS|KY|LA|ME|MD|MA|MI|MN|MS|MO|MT|NE|NV|NH|NJ|NM|NY|NC|\
    ND|OH|OK|OR|PA|RI|SC|SD|TN|TX|UT|VT|VA|WA|WV|WI|WY|DC|PR|VI|GU|AS|MP|FM|MH|PW|AA|AE|AP|ON|QC|BC|AB|\
    MB|SK|NS|NB|NL|PE|NT|YT|NU|NSW|VIC|QLD|TAS|ACT";

/// Lower-case words that a line of an address never starts with; capitalised at the start of a sentence.
pub(super) const NOT_PLACES: &str = "\
    i|we|you|he|she|it|they|the|this|that|please|thanks|thank|my|our|your|phone|tel|telephone|email|\
    e-mail|fax|mobile|mail|date|name|dear|regards|best|sincerely|call|if|and|but|for|from|to|with|when|\
    where|is|was|are|dob|ssn|note|order|invoice|total|subject|telefon|geboren|ich|wir|sie|tél|je|nous|\
    téléphone|courriel|teléfono|yo|telefono|telefone|telefoon|eu|тел|телефон|я|мы|card|account|age|gender|website|web|url|http|\
    https|www|january|february|march|april|may|june|july|august|september|october|november|december|\
    monday|tuesday|wednesday|thursday|friday|saturday|sunday";
