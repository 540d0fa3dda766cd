// What charts use of Vega; vendor_assets.sh makes one file of it.
export { default as embed } from "vega-embed";
export { expressionInterpreter } from "vega-interpreter";
