"""Hand-made word lists behind the lexicon: words that must be in it, sense choices, filters, inflections.

Everything here is read by `facts.py`; the training data itself never looks at this file.
"""
import re

# Words that people try first. They are added to the lexicon whatever their frequency (if WordNet has them).
SHOWCASE = """
heron atoll lute serendipity frugal quick whale ephemeral ubiquitous petrichor candle volcano violin guitar piano trumpet
flute cello harp oboe clarinet bassoon banjo mandolin lyre dulcimer zither accordion harpsichord glockenspiel xylophone
osprey kestrel puffin pelican stork crane egret ibis kingfisher nightingale wren finch sparrow swallow thrush robin magpie
jackdaw rook raven crow lark owl falcon eagle hawk albatross flamingo toucan parrot penguin ostrich emu cormorant gull tern
walrus dolphin porpoise otter beaver badger hedgehog weasel stoat ferret mole shrew vole squirrel chipmunk marmot hare rabbit
lynx ocelot puma jaguar leopard cheetah lion tiger panther wolf fox jackal hyena bear panda koala kangaroo wombat platypus
elephant rhinoceros hippopotamus giraffe zebra camel llama alpaca bison yak antelope gazelle moose reindeer elk deer goat
salmon trout herring mackerel cod haddock halibut sardine anchovy tuna shark ray eel carp pike perch sturgeon lobster crab
shrimp prawn oyster mussel clam squid octopus jellyfish starfish coral sponge snail slug worm leech spider scorpion ant bee
wasp hornet beetle butterfly moth dragonfly grasshopper cricket locust mosquito frog toad newt salamander lizard gecko iguana
crocodile alligator tortoise turtle snake viper python cobra
oak ash elm birch beech willow poplar maple sycamore pine spruce fir larch cedar yew juniper cypress holly ivy fern moss
lichen mushroom orchid tulip daffodil lily rose violet daisy dandelion thistle nettle clover heather lavender rosemary thyme
basil sage mint parsley coriander cumin turmeric saffron cinnamon nutmeg ginger garlic onion leek shallot carrot parsnip
turnip beetroot radish potato tomato cucumber lettuce spinach cabbage broccoli cauliflower artichoke asparagus aubergine
eggplant courgette zucchini pumpkin squash melon apple pear plum peach apricot cherry strawberry raspberry blackberry
blueberry cranberry gooseberry grape fig date mango papaya pineapple banana lemon lime orange grapefruit pomegranate quince
walnut hazelnut almond chestnut cashew pistachio
archipelago peninsula isthmus lagoon fjord glacier iceberg delta estuary tributary canyon ravine gorge plateau savanna
tundra steppe prairie oasis dune reef cliff cave meadow marsh swamp bog moor heath island lake river ocean mountain valley
anvil hammer chisel plane lathe axe adze sickle scythe plough hoe rake spade shovel bellows forge kiln loom spindle
thimble needle scissors knife fork spoon ladle sieve colander kettle teapot goblet chalice tankard decanter flask
telescope microscope compass sextant barometer thermometer sundial hourglass pendulum lantern abacus
galleon frigate schooner sloop canoe kayak gondola raft barge tugboat trawler yacht
sonnet haiku ballad elegy limerick ode epic fable parable allegory metaphor simile alliteration palindrome anagram
oxymoron paradox euphemism hyperbole irony satire soliloquy
melancholy nostalgia euphoria apathy empathy sympathy envy jealousy gratitude humility hubris candor integrity
resilience tenacity wisdom folly prudence temperance fortitude courage cowardice
abundant scarce ancient modern brave timid calm anxious clever foolish cruel kind eager reluctant fragile sturdy
gloomy cheerful greedy generous humble arrogant lazy diligent loud quiet lucid obscure meager meticulous careless
nimble clumsy opaque transparent placid turbulent prolific barren rigid flexible shallow deep sincere deceitful
tedious fascinating vivid dull wary zealous benevolent malevolent candid concise verbose cordial dainty elegant
pristine quaint rustic serene sublime tacit taciturn loquacious garrulous laconic lethargic gregarious gullible
whimsical capricious fickle steadfast stoic stubborn obstinate pragmatic idealistic skeptical gullible
hot cold big small fast slow happy sad good bad old young light dark rich poor strong weak clean dirty dry wet early late
walk run jump swim climb crawl whisper shout mumble gather scatter build destroy borrow lend buy sell teach learn
ponder wander meander linger hasten hesitate persevere procrastinate reconcile relinquish scrutinize
abandon accept accelerate admire admonish alleviate amplify augment bewilder cajole coax conceal concur condone
corroborate deter diminish elucidate embellish emulate enhance exonerate fathom flourish forsake galvanize
hinder impede implore incite instigate jeopardize kindle lament mitigate nurture obliterate placate quench
rebuke refute rejoice salvage shun squander thwart vacillate vindicate yearn
quickly slowly often seldom always never rarely gently boldly eagerly
mill tower bridge castle cathedral lighthouse windmill cottage barn stable library museum theatre hospital school
bicycle tractor locomotive tram carriage sledge sleigh helicopter airplane balloon parachute
bread butter cheese honey porridge soup stew pie pudding biscuit cake omelette pancake sandwich
physician surgeon carpenter blacksmith tailor cobbler weaver potter miller baker butcher farmer shepherd sailor
astronomer botanist geologist historian philosopher poet painter sculptor composer
""".split()

# lemma -> (pos, substring of the gloss): the sense to use where the rule below picks an odd one.
SENSE = {
    'whale': ('n', 'cetacean mammal'), 'crane': ('n', 'wading bird'), 'ray': ('n', 'cartilaginous'), 'bat': ('n', 'nocturnal mouselike'),
    'robin': ('n', 'Old World songbird'), 'banana': ('n', 'yellow fruit'), 'almond': ('n', 'nutlike seed'), 'raspberry': ('n', 'edible'), 'spade': ('n', 'hand shovel'), 'parachute': ('n', 'rescue'), 'irony': ('n', 'incongruity'), 'swallow': ('n', 'small long-winged songbird'), 'date': ('n', 'calendar'),
    'kind': ('n', 'category of things'), 'mole': ('n', 'burrowing mammal'), 'seal': ('n', 'marine mammals'),
    'squash': ('n', 'edible fruit of a squash plant'), 'sponge': ('n', 'porous mass'), 'pike': ('n', 'freshwater'),
    'perch': ('n', 'support'), 'cod': ('n', 'lean white flesh'), 'mint': ('n', 'plant'), 'sage': ('n', 'aromatic'),
    'fox': ('n', 'carnivorous mammal'), 'wolf': ('n', 'carnivorous canine'), 'lion': ('n', 'large gregarious'), 'tiger': ('n', 'large feline'),
    'bear': ('n', 'plantigrade'), 'lute': ('n', 'chordophone'), 'bank': ('n', 'financial institution'), 'mouse': ('n', 'rodents'), 'bowl': ('n', 'vessel'), 'goat': ('n', 'ruminant'), 'snake': ('n', 'limbless'), 'shark': ('n', 'elongate'),
    'crab': ('n', 'decapod'), 'rook': ('n', 'crow'), 'python': ('n', 'boa'), 'rose': ('n', 'shrubs'),
    'lime': ('n', 'green acidic fruit'), 'orange': ('n', 'round yellow'), 'fig': ('n', 'fleshy sweet'), 'pear': ('n', 'juicy'), 'plum': ('n', 'varieties of small'),
    'ant': ('n', 'social insect'), 'bee': ('n', 'hairy-bodied'), 'moth': ('n', 'insect'), 'slug': ('n', 'gastropod'), 'duck': ('n', 'swimming bird'),
    'turkey': ('n', 'bird'), 'hawk': ('n', 'bird of prey'), 'monkey': ('n', 'primates'), 'rat': ('n', 'rodent'), 'pig': ('n', 'swine'),
    'dog': ('n', 'domesticated'), 'cat': ('n', 'feline'), 'cow': ('n', 'female'), 'horse': ('n', 'hoofed'), 'chicken': ('n', 'domestic fowl'),
    'violet': ('n', 'variable color'), 'thrush': ('n', 'songbirds'), 'lark': ('n', 'bird'), 'gull': ('n', 'aquatic bird'),
    'python ': ('n', ''), 'jaguar': ('n', 'feline'), 'cricket': ('n', 'insect'), 'beetle': ('n', 'insect'), 'ash': ('n', 'residue'),
    'leech': ('n', 'worms'), 'toad': ('n', 'amphibian'), 'drill': ('n', 'tool'), 'plane': ('n', 'aircraft'), 'hare': ('n', 'rabbit'),
    'onion': ('n', 'bulb'), 'viper': ('n', 'Old World'), 'hamster': ('n', 'rodent'), 'bull': ('n', 'male'), 'stoat': ('n', 'ermine'),
    'lemon': ('n', 'yellow oval fruit'), 'peach': ('n', 'juicy fruit'), 'tomato': ('n', 'fruit'), 'cherry': ('n', 'red fruit'), 'potato': ('n', 'tuber'),
    'apple': ('n', 'fruit'), 'banana': ('n', 'fruit'), 'salmon': ('n', 'food and game fish'), 'trout': ('n', 'game and food'), 'quick': ('a', 'accomplished rapidly'),
}
SENSE.pop('python ')

# WordNet lexicographer files preferred among untagged noun senses: animal, artifact, body, food, object, plant, substance.
CONCRETE = {'05', '06', '08', '13', '17', '20', '27'}

# Headwords or glosses that a small public demonstration has no reason to carry.
BAD = re.compile(r"\b(offensive|obscen\w*|vulgar\w*|slur|disparag\w*|derogatory|ethnic|racis\w*|racial|sexual\w*|sexually|sex|sexy|genital\w*|copulat\w*|"
                 r"prostitut\w*|penis|vagina\w*|testic\w*|scrotum|nipples?|feces|faeces|fecal|excre\w*|urin\w*|defecat\w*|whore\w*|slut\w*|rape\w*|rapist|nazi\w*|"
                 r"masturbat\w*|homosexual\w*|heterosexual\w*|lesbian\w*|erotic\w*|sodom\w*|incest\w*|pornograph\w*|intercourse|negro\w*|heroin|cocaine|"
                 r"suicid\w*|orgas\w*|lust|lustful\w*|adulter\w*|lewd\w*|contracept\w*|abort\w*|semen|sperm\w*|ejaculat\w*|castrat\w*|fornicat\w*|pimp|brothel|pederast\w*|pedophil\w*|"
                 r"gay|queer|retarded|cretin|moron\w*|imbecil\w*|idiot\w*|bastard\w*|bitch\w*|fuck\w*|shit\w*|piss\w*|crap|arse|asshole|damn\w*|tits?|boobs?|cunt|cock|dyke|fag\w*|"
                 r"genocid\w*|holocaust|terroris\w*|lynch\w*|molest\w*|decapitat\w*|jew|jews|jewish|muslims?|islam\w*|kike|wog|nigg\w*|darky|gypsy|savages?)\b", re.I)
# Example sentences are filtered more strictly: nobody should meet these in a sample sentence.
BAD_EXAMPLE = re.compile(r"\b(kill\w*|murder\w*|stab\w*|slaughter\w*|massacre\w*|corpse|blood\w*|drugs?|drunk\w*|stupid|ugly|fat|god|allah|jesus|christ\w*|bomb\w*|gun|guns|shoot\w*|shot|"
                         r"hell|devil|hate[sd]?|hatred|naked|nude|mistress|seduc\w*|virgin\w*|pregnan\w*|slave\w*|blacks?|whites?|indians?|republicans?|democrats?|president|bush|clinton|reagan|hitler|stalin|"
                         r"beat his wife|raped|execut\w*|hang(?:ed)? him|death|dead|dies?|died)\b", re.I)
# Words kept out by themselves.
DROP_WORDS = set("""sucks suck sucker screw screwed hooker ho bang banger balls ball-buster wank tosser bugger sod git prick dick willy nookie shag
snatch twat poof fairy coon jap paki chink gook redneck scotch hymen foreskin uterus clitoris crotch groin fetish orgy erection panty panties bra hump
bimbo tart strumpet hustler escort kinky horny randy bum anal anus rectum enema diarrhea diarrhoea vomit puke fart nazism hitler""".split())

# Irregular forms that the suffix rules do not reach: form -> base. Used when the form is no headword itself.
IRREGULAR = dict(p.split(':') for p in """mice:mouse geese:goose children:child men:man women:woman feet:foot teeth:tooth oxen:ox lice:louse
knives:knife wives:wife lives:life leaves:leaf loaves:loaf halves:half calves:calf shelves:shelf wolves:wolf thieves:thief elves:elf hooves:hoof
went:go gone:go saw:see seen:see took:take taken:take gave:give given:give came:come knew:know known:know thought:think brought:bring bought:buy
caught:catch taught:teach sold:sell told:tell stood:stand understood:understand wrote:write written:write drove:drive driven:drive rode:ride ridden:ride
ate:eat eaten:eat drank:drink sang:sing sung:sing swam:swim swum:swim began:begin begun:begin ran:run spoke:speak spoken:speak broke:break broken:break
chose:choose chosen:choose stole:steal stolen:steal froze:freeze frozen:freeze wore:wear worn:wear tore:tear torn:tear swore:swear grew:grow grown:grow
threw:throw thrown:throw flew:fly flown:fly drew:draw drawn:draw blew:blow blown:blow slept:sleep kept:keep wept:weep swept:sweep crept:creep built:build
sent:send spent:spend lent:lend bent:bend lost:lose won:win dug:dig hung:hang stuck:stick struck:strike sought:seek fought:fight forgot:forget
forgotten:forget hid:hide hidden:hide bitten:bite shook:shake shaken:shake woke:wake fell:fall fallen:fall felt:feel held:hold led:lead met:meet paid:pay
said:say sat:sit slid:slide spun:spin sprang:spring sprung:spring swung:swing larger:large largest:large bigger:big biggest:big happier:happy happiest:happy
better:good worse:bad cacti:cactus fungi:fungus nuclei:nucleus crises:crisis theses:thesis oases:oasis phenomena:phenomenon criteria:criterion""".split())


def inflections(word, pos):
    """The regular inflected forms of a base form, without its own spelling: nouns -s, verbs -s/-ed/-ing."""
    vowels = 'aeiou'
    out = []
    if pos in ('noun', 'verb'):
        if re.search(r'(s|x|z|ch|sh)$', word):
            out.append(word + 'es')
        elif word.endswith('y') and len(word) > 2 and word[-2] not in vowels:
            out.append(word[:-1] + 'ies')
        else:
            out.append(word + 's')
    if pos == 'verb':
        if word.endswith('e'):
            out += [word + 'd', (word[:-2] + 'ying') if word.endswith('ie') else word[:-1] + 'ing' if not word.endswith('ee') else word + 'ing']
        elif word.endswith('y') and word[-2] not in vowels:
            out += [word[:-1] + 'ied', word + 'ing']
        elif len(word) <= 4 and re.search(r'[^aeiou][aeiou][^aeiouwxy]$', word):
            out += [word + word[-1] + 'ed', word + word[-1] + 'ing']
        else:
            out += [word + 'ed', word + 'ing']
    return out
