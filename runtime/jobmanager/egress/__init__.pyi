from .endpoint import EgressEndpoint as EgressEndpoint
from .exchange import Ask as Ask, Exchange as Exchange, without_gateway as without_gateway
from .ledger import EgressLedger as EgressLedger
