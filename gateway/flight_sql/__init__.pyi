from .service import FlightSqlService as FlightSqlService
from .spark import SparkSql as SparkSql
from .statements import Statements as Statements
